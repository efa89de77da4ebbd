"""The open rounds of a run on this lane, and the rounds that wait for a verdict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from reducer.core.rounds.round import Round

# The bound of a walk: a job with thousands of open rounds must not delay other jobs.
LOOKED_AT: Final = 1_024


class OpenRounds:
    """Open rounds in the order of their first contributions, and rounds that wait for a verdict."""

    def __init__(self) -> None:
        # A plain dict finds its first entry only after a walk over the removed ones before it.
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
        """The first contribution to the round has come."""
        self._openings += 1
        round_.opening = self._openings
        round_.opened_at = now
        self._open[round_] = None
        if self.oldest is None:
            self.oldest = round_

    def end(self, round_: Round) -> bool:
        """The round is complete or void. Returns whether it was the oldest."""
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
        """At most `most` rounds for which nothing has come in `after` seconds.

        Only the oldest LOOKED_AT rounds are looked at.
        """
        oldest = islice(self, LOOKED_AT)
        return list(islice((r for r in oldest if now - r.touched_at >= after), most))

    def first_that_wants(self, rank: int) -> Round | None:
        """The first round that cannot end without this rank, or None."""
        return next((round_ for round_ in self if round_.wants(rank)), None)

    def drop(self, round_: Round) -> None:
        """The round's stream has moved away."""
        self._take_out(round_)
        self._judged.pop(round_, None)

    def clear(self) -> None:
        self._open.clear()
        self.oldest = None
        self._judged.clear()
