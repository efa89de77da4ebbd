"""What every rank has passed in an earlier stream is forgotten a part at a time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from reducer.core.credits import Ledger
from reducer.core.events import Free, Output
from reducer.core.grants import Grants
from reducer.core.progress import KeyProgress
from reducer.core.round import Round, Step
from reducer.core.stream import Stream
from reducer.core.verdicts import Verdicts
from reducer.wire.codes import MAX_CHUNKS

# Rounds and chunks: 3 to 5 us each.
FORGOTTEN_AT_ONCE: Final = 256


class Passed:
    """`_keys` have more rounds of that kind than one turn forgets; who has waited longest is first.

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

    def forget(self, stream: Stream, key: KeyProgress, out: list[Output]) -> None:
        """The next part of the key."""
        self._forget_some(key, out)
        if key.has_passed:
            self._keys[key] = stream
        elif self._keys:
            self._keys.pop(key, None)
        stream.keys.maybe_idle(key)

    def forget_more(self, out: list[Output]) -> None:
        """The next part of the key that has waited longest."""
        key, stream = next(iter(self._keys.items()))
        if stream.is_over:
            del self._keys[key]
        else:
            self.forget(stream, key, out)

    def clear(self) -> None:
        self._keys.clear()

    def _forget_some(self, key: KeyProgress, out: list[Output]) -> None:
        left, over = FORGOTTEN_AT_ONCE, list[Round]()
        while left > 0 and (round_ := key.first_passed()) is not None:
            left -= 1 + self._drop(round_, MAX_CHUNKS, left, out)
            if round_.has_passed(MAX_CHUNKS):
                break
            self._verdicts.forget(round_)
            key.forget(round_)
            over.append(round_)
        number, index = divmod(key.stable, MAX_CHUNKS)
        under_way = key.rounds.get(number)
        if left > 0 and under_way is not None:
            self._drop(under_way, index, left, out)
            if under_way.left == 0:
                over.append(under_way)
        self._grants.end_all(over, out)

    def _drop(self, round_: Round, index: int, most: int, out: list[Output]) -> int:
        """Drop chunks before `index` that are not complete; how many."""
        chunks = round_.passed(index, most)
        for chunk in chunks:
            for rank in chunk.present():
                self._ledger.settle(rank, chunk.cost)
            chunk.step(Step.VOIDED)
            out.append(Free(self._run, chunk.drop()))
            round_.forget_chunk(chunk)
            round_.left -= 1
        return len(chunks)
