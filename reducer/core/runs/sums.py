"""Decides what a kernel does with the parts of a chunk, when, and in which order of the ranks.

An accumulator is taken only when the parts that it replaces are together at least as large. If the
parts of a chunk are too large for one turn, they are summed in several turns of the job.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from reducer.core.rounds.key_table import KeyRounds
from reducer.core.rounds.round import Chunk, Phase, Round
from reducer.core.runs.results import Results
from reducer.core.runs.terms import Terms
from reducer.core.surface.events import Finish, Fold, Folded, Free, Output, Reduced, Sum
from reducer.core.surface.settings import LaneSettings
from reducer.wire.codes import COPY, DType, ReduceOp
from reducer.wire.sizes import contribution_layout

# The least number of parts that are folded before all ranks have contributed: every fold reads and
# writes the whole accumulator.
FOLD_AT_ONCE: Final = 4
_FREE_DTYPE: Final = int(DType.FLOAT16)
_FREE_OPS: Final = frozenset((int(ReduceOp.SUM), int(ReduceOp.MEAN)))


class Work:
    """A chunk that a kernel is working on, and the chunk's key."""

    __slots__ = ("chunk", "key")

    def __init__(self, key: KeyRounds, chunk: Chunk) -> None:
        self.key = key
        self.chunk = chunk


class Sums:
    """The sums of a run's chunks.

    `_works`: the chunks that a kernel is working on, by the `work` of the Fold or Finish. `behind`:
    the chunks that need more turns.
    """

    def __init__(self, terms: Terms, settings: LaneSettings, results: Results) -> None:
        self._number = terms.number
        self._acc_itemsize = settings.acc_itemsize
        self._most = settings.most_summed
        self.results = results
        self.behind: OrderedDict[Chunk, KeyRounds] = OrderedDict()
        self._works: dict[int, Work] = {}
        self._last_work = 0

    def add(self, key: KeyRounds, chunk: Chunk, now: float, out: list[Output]) -> bool:
        """Fold the parts that are ready; finish the chunk if all parts are there and fit in one
        turn.

        Returns True if the chunk needs more turns from now on.
        """
        described = chunk.round.descriptor
        assert described is not None
        op, dtype = described.op, described.dtype
        is_behind = False
        if not chunk.missing and (op == COPY or not self._is_too_much(chunk, op, dtype)):
            self._finish(key, chunk, op, dtype, now, out)
        elif op != COPY and len(chunk.parts) >= FOLD_AT_ONCE:
            is_behind = self._maybe_fold(key, chunk, op, dtype, out)
        if is_behind and chunk not in self.behind:
            self.behind[chunk] = key
            return True
        if self.behind and not is_behind:
            self.behind.pop(chunk, None)
        return False

    def maybe_go_on(self, now: float, out: list[Output]) -> None:
        """Sum the next parts of a chunk that needs more turns, unless a kernel is working."""
        if self.behind and not self._works:
            self.go_on(now, out)

    def go_on(self, now: float, out: list[Output]) -> None:
        """Sum the next parts of the chunk that has waited longest."""
        chunk, key = next(iter(self.behind.items()))
        if chunk.phase is not Phase.COLLECTING or chunk.position < key.stable:
            del self.behind[chunk]  # void meanwhile, or every rank has passed it (PassedRounds)
            return
        self.add(key, chunk, now, out)

    def folded(self, event: Folded, out: list[Output]) -> None:
        """The kernel is done: the parts of `folding` are in the accumulator."""
        chunk = self._works.pop(event.work).chunk
        chunk.note(event.flags, event.culprit)
        out.append(Free(self._number, chunk.folded_into(event.taken)))

    def reduced(self, event: Reduced, now: float, out: list[Output]) -> None:
        """The kernel is done: the result is in a buffer that the shell has taken, or else in that
        of the last part.
        """
        work = self._works.pop(event.work)
        chunk = work.chunk
        chunk.note(event.flags, event.culprit)
        result = chunk.last_part() if event.taken is None else event.taken
        self.results.answer(work.key, chunk, event.crc, result, now, out)

    def forget(self, round_: Round) -> None:
        """The round continues on another lane."""
        for chunk in round_.chunks.values():
            self.behind.pop(chunk, None)

    def give_up(self, chunk: Chunk) -> None:
        """The result has come from a rank that holds it."""
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
        """How many large parts one turn sums: at least as many as an accumulator replaces."""
        return max(FOLD_AT_ONCE, width, self._most // chunk.part_bytes)

    def _width(self, op: int, dtype: int) -> int:
        """The size of an accumulator, in parts, rounded up."""
        part = contribution_layout(dtype)
        return -(-part.unit * self._acc_itemsize(op, dtype) // part.unit_bytes)

    def _maybe_fold(
        self, key: KeyRounds, chunk: Chunk, op: int, dtype: int, out: list[Output]
    ) -> bool:
        """Fold parts if the accumulator is no larger than the parts that it replaces.

        Returns True if parts that were ready are left.
        """
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
        work, total = self._begin(key, chunk, op, dtype)
        chunk.begin_fold(ranks)
        out.append(Fold(self._number, work, total, acc, parts, ranks))
        return more

    def _finish(
        self, key: KeyRounds, chunk: Chunk, op: int, dtype: int, now: float, out: list[Output]
    ) -> None:
        """All ranks have contributed: reduce the parts, or send on the only one."""
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
            assert chunk.round.plan is not None
            target = parts[-1] if chunk.round.plan.is_even else None
            work, total = self._begin(key, chunk, op, dtype)
            out.append(Finish(self._number, work, total, chunk.acc, parts, ranks, target))

    def _begin(self, key: KeyRounds, chunk: Chunk, op: int, dtype: int) -> tuple[int, Sum]:
        """Note that a kernel works on the chunk. Returns the number of the work, and its sum."""
        plan = chunk.round.plan
        assert plan is not None
        members = chunk.round.stream.view.count
        total = Sum(op, dtype, plan.elements(chunk.index), members)
        self._last_work += 1
        self._works[self._last_work] = Work(key, chunk)
        return self._last_work, total


def _in_order(op: int, dtype: int) -> bool:
    """Whether the parts must be folded in rank order.

    The order of sums of float16 is free: in float64 they are exact (up to 8,192 ranks).
    """
    return dtype != _FREE_DTYPE or op not in _FREE_OPS
