"""What a kernel is to do with the parts of a chunk, and when.

An accumulator is opened only in place of parts that are as large. Parts of one chunk that are more
than are summed at once are summed in several turns of the run.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from reducer.core.rounds.keytable import KeyRounds
from reducer.core.rounds.plan import Plan
from reducer.core.rounds.round import Chunk, Phase, Round
from reducer.core.runs.results import Results
from reducer.core.runs.terms import Terms
from reducer.core.surface.events import Finish, Fold, Folded, Free, Output, Reduced, Sum
from reducer.core.surface.settings import LaneSettings
from reducer.wire.codes import COPY, ITEM_SIZES, DType, ReduceOp

# Parts that are folded in one pass, before the last has come: a pass for each would read and write
# the accumulator as often.
FOLD_AT_ONCE: Final = 4
_FREE_DTYPE: Final = int(DType.FLOAT16)
_FREE_OPS: Final = frozenset((int(ReduceOp.SUM), int(ReduceOp.MEAN)))


class Work:
    """A chunk that a kernel is at work on, of a key."""

    __slots__ = ("chunk", "key")

    def __init__(self, key: KeyRounds, chunk: Chunk) -> None:
        self.key = key
        self.chunk = chunk


class Sums:
    """`_works` are the chunks that a kernel is at work on, by the number that its Fold or Finish
    carries; `behind` are the chunks with more parts to sum than at once.
    """

    def __init__(self, terms: Terms, settings: LaneSettings, results: Results) -> None:
        self._number = terms.number
        self._world_size = terms.world_size
        self._acc_itemsize = settings.acc_itemsize
        self._most = settings.most_summed
        self.results = results
        self.behind: OrderedDict[Chunk, KeyRounds] = OrderedDict()
        self._works: dict[int, Work] = {}
        self._last_work = 0

    def add(
        self,
        key: KeyRounds,
        chunk: Chunk,
        op: int,
        dtype: int,
        plan: Plan,
        now: float,
        out: list[Output],
    ) -> bool:
        """Fold what has its turn; where all are in, and no more than are summed at once, finish.

        True where the chunk is behind from now on.
        """
        is_behind = False
        if not chunk.missing and (op == COPY or not self._is_too_much(chunk, op, dtype)):
            self._finish(key, chunk, op, dtype, plan, now, out)
        elif op != COPY and len(chunk.parts) >= FOLD_AT_ONCE:
            is_behind = self._maybe_fold(key, chunk, op, dtype, plan, out)
        if is_behind and chunk not in self.behind:
            self.behind[chunk] = key
            return True
        if self.behind and not is_behind:
            self.behind.pop(chunk, None)
        return False

    def maybe_go_on(self, now: float, out: list[Output]) -> None:
        """Do the next part of what is behind, unless a kernel is at work."""
        if self.behind and not self._works:
            self.go_on(now, out)

    def go_on(self, now: float, out: list[Output]) -> None:
        """The next parts of the chunk that has waited longest."""
        chunk, key = next(iter(self.behind.items()))
        described, plan = chunk.round.descriptor, chunk.round.plan
        if chunk.phase is not Phase.COLLECTING or described is None or plan is None:
            del self.behind[chunk]  # void meanwhile
            return
        self.add(key, chunk, described.op, described.dtype, plan, now, out)

    def folded(self, event: Folded, out: list[Output]) -> None:
        """The kernel is done with `folding`: the parts are in the accumulator."""
        chunk = self._works.pop(event.work).chunk
        chunk.note(event.flags, event.culprit)
        out.append(Free(self._number, chunk.folded_into(event.taken)))

    def reduced(self, event: Reduced, now: float, out: list[Output]) -> None:
        """The kernel is done: the last part is the result, as `_finish` has said."""
        work = self._works.pop(event.work)
        chunk = work.chunk
        chunk.note(event.flags, event.culprit)
        self.results.answer(work.key, chunk, event.crc, chunk.last_part(), now, out)

    def forget(self, round_: Round) -> None:
        """The round goes on elsewhere."""
        for chunk in round_.chunks.values():
            self.behind.pop(chunk, None)

    def clear(self) -> None:
        self.behind.clear()
        self._works.clear()

    def _is_too_much(self, chunk: Chunk, op: int, dtype: int) -> bool:
        parts = len(chunk.parts)
        if parts * chunk.part_bytes <= self._most:
            return False
        return parts > self._at_once(chunk, self._width(op, dtype))

    def _at_once(self, chunk: Chunk, width: int) -> int:
        """So many parts, where they are large; no fewer than make place for an accumulator."""
        return max(FOLD_AT_ONCE, width, self._most // chunk.part_bytes)

    def _width(self, op: int, dtype: int) -> int:
        """An accumulator is as large as so many parts."""
        return self._acc_itemsize(op, dtype) // ITEM_SIZES[dtype]

    def _maybe_fold(
        self, key: KeyRounds, chunk: Chunk, op: int, dtype: int, plan: Plan, out: list[Output]
    ) -> bool:
        """Fold where the accumulator is no larger than what it replaces; True if more is left."""
        ranks = chunk.ready(_in_order(op, dtype))
        if len(ranks) < FOLD_AT_ONCE:
            return False
        width = self._width(op, dtype)
        if chunk.acc is None and len(ranks) < width:
            return False
        more = False
        if len(ranks) * chunk.part_bytes > self._most:
            most = self._at_once(chunk, width)
            more = len(ranks) > most
            del ranks[most:]
        parts = [chunk.parts[rank] for rank in ranks]
        acc = parts[0] if chunk.acc is None and width == 1 else chunk.acc
        total = Sum(op, dtype, plan.elements(chunk.index), self._world_size)
        work = self._begin(key, chunk)
        chunk.begin_fold(ranks)
        out.append(Fold(self._number, work, total, acc, parts, ranks))
        return more

    def _finish(
        self,
        key: KeyRounds,
        chunk: Chunk,
        op: int,
        dtype: int,
        plan: Plan,
        now: float,
        out: list[Output],
    ) -> None:
        """All ranks are in: reduce, or forward the one part that there is."""
        chunk.begin_last()
        ranks = sorted(chunk.parts)
        parts = [chunk.parts[r] for r in ranks]
        if not parts:
            self.results.answer(key, chunk, 0, None, now, out)
        elif op == COPY:
            crc = chunk.crcs[ranks[0]]
            assert crc is not None
            self.results.answer(key, chunk, crc, parts[0], now, out)
        else:
            total = Sum(op, dtype, plan.elements(chunk.index), self._world_size)
            work = self._begin(key, chunk)
            out.append(Finish(self._number, work, total, chunk.acc, parts, ranks, parts[-1]))

    def _begin(self, key: KeyRounds, chunk: Chunk) -> int:
        self._last_work += 1
        self._works[self._last_work] = Work(key, chunk)
        return self._last_work


def _in_order(op: int, dtype: int) -> bool:
    """Law 2: sums of float16 in float64 are exact (at most 8,192 ranks), their order is free."""
    return dtype != _FREE_DTYPE or op not in _FREE_OPS
