"""The rounds of a job that are under way on this lane, and who is waited for in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from reducer.core.rounds.round import Round

# Whoever keeps thousands of rounds open, on purpose or not, costs the others no walk over them.
LOOKED_AT: Final = 1_024


class OpenRounds:
    """Open ones, oldest first, by the first contribution; and those that wait for a verdict."""

    def __init__(self) -> None:
        # A dict finds its first one behind all that were taken out before that.
        self._open: OrderedDict[Round, None] = OrderedDict()
        self._judged: OrderedDict[Round, None] = OrderedDict()
        self.oldest: Round | None = None  # of the open ones
        self._openings = 0

    def __len__(self) -> int:
        return len(self._open)

    def __bool__(self) -> bool:
        return bool(self._open or self._judged)

    def __iter__(self) -> Iterator[Round]:
        return chain(self._open, self._judged)

    def begin(self, round_: Round, now: float) -> None:
        """Its first contribution has come."""
        self._openings += 1
        round_.opening = self._openings
        round_.opened_at = now
        self._open[round_] = None
        if self.oldest is None:
            self.oldest = round_

    def end(self, round_: Round) -> bool:
        """It is complete or void; True if it was the oldest."""
        was_oldest = self.oldest is round_
        self._take_out(round_)
        return was_oldest

    def _take_out(self, round_: Round) -> None:
        self._open.pop(round_, None)
        if self.oldest is round_:
            self.oldest = next(iter(self._open)) if self._open else None

    def begin_verdict(self, round_: Round) -> None:
        """Two descriptors differ: the round waits for the descriptors of the other ranks."""
        round_.begin_verdict()
        self._judged[round_] = None

    def end_verdict(self, round_: Round) -> None:
        self._judged.pop(round_, None)

    def stalled(self, now: float, after: float, most: int) -> list[Round]:
        """So many of those that nothing has come for in `after` seconds; the oldest LOOKED_AT are
        looked at."""
        oldest = islice(self, LOOKED_AT)
        return list(islice((r for r in oldest if now - r.touched_at >= after), most))

    def that_wants(self, rank: int) -> Round | None:
        """A round that cannot end without this rank."""
        return next((round_ for round_ in self if round_.wants(rank)), None)

    def drop(self, round_: Round) -> None:
        """Its stream has moved away."""
        self._take_out(round_)
        self._judged.pop(round_, None)

    def clear(self) -> None:
        self._open.clear()
        self.oldest = None
        self._judged.clear()
