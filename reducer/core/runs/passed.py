"""What every rank has passed in an earlier stream is forgotten a part at a time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from reducer.core.rounds.progress import KeyProgress
from reducer.core.rounds.round import Round, Step
from reducer.core.rounds.stream import Stream
from reducer.core.runs.grants import Grants
from reducer.core.runs.ledger import Ledger
from reducer.core.runs.verdicts import Verdicts
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Free, Output
from reducer.wire.codes import MAX_CHUNKS

# Rounds and chunks: 3 to 5 us each, and as much for so many ranks of a chunk, and for so many bytes
# of the records of a round: what each rank has said of a void one.
FORGOTTEN_AT_ONCE: Final = 256
RANKS_AT_ONCE: Final = 8
RECORDS_AT_ONCE: Final = 4_096


class Passed:
    """`_keys` have rounds of that kind, who has waited longest first; one frame may name many keys.

    The rounds are not complete here. A rank that did not know how far the others are has sent
    chunks of them here again.
    """

    def __init__(self, run: int, ledger: Ledger, verdicts: Verdicts, grants: Grants) -> None:
        self._run = run
        self._ledger = ledger
        self._verdicts = verdicts
        self._grants = grants
        self._keys: OrderedDict[KeyProgress, Stream] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, stream: Stream, key: KeyProgress) -> None:
        """The ranks have passed more of the key."""
        if key.has_passed:
            self._keys[key] = stream

    def forget_more(self, out: list[Output]) -> None:
        """The next part, of the keys that have waited longest."""
        left = FORGOTTEN_AT_ONCE
        while left > 0 and self._keys:
            key, stream = next(iter(self._keys.items()))
            if not stream.is_over:
                left = self._forget_some(key, left, out)
                stream.keys.maybe_idle(key)
                if key.has_passed:
                    break
            del self._keys[key]
            left -= 1

    def clear(self) -> None:
        self._keys.clear()

    def _forget_some(self, key: KeyProgress, left: int, out: list[Output]) -> int:
        """Forget `left` rounds and chunks at most; how many more might be."""
        over = list[Round]()
        while left > 0 and (round_ := key.first_passed()) is not None:
            left -= 1 + self._drop(round_, MAX_CHUNKS, left, out)
            if round_.has_passed(MAX_CHUNKS):
                break
            left -= round_.charged // RECORDS_AT_ONCE
            self._verdicts.forget(round_)
            key.forget(round_)
            over.append(round_)
        number, index = divmod(key.stable, MAX_CHUNKS)
        under_way = key.rounds.get(number)
        if left > 0 and under_way is not None:
            left -= self._drop(under_way, index, left, out)
            if under_way.left == 0:
                over.append(under_way)
        self._grants.end_all(over, out)
        return left

    def _drop(self, round_: Round, index: int, most: int, out: list[Output]) -> int:
        """Drop chunks before `index` that are not complete, one or so many as `most` allows; what
        they take of it."""
        each = 1 + len(round_.contributed) // RANKS_AT_ONCE
        chunks = round_.passed(index, max(1, most // each))
        for chunk in chunks:
            for rank in chunk.present():
                self._ledger.settle(rank, chunk.cost)
            chunk.step(Step.VOIDED)
            freed: list[Buffer] = []
            out.append(Free(self._run, freed))
            chunk.drop(freed)
            round_.forget_chunk(chunk)
            round_.left -= 1
        return len(chunks) * each
