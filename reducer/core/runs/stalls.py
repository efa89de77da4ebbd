"""Reports rounds that wait for ranks, to the ranks and to the operator."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any, Final

from reducer.core.rounds.open_rounds import OpenRounds
from reducer.core.rounds.round import Round
from reducer.core.rounds.texts import about, stall_entry, stall_text
from reducer.core.runs.seats import Seats
from reducer.core.runs.terms import Terms
from reducer.core.surface.events import Log, Output
from reducer.wire import messages

MAX_STALLS: Final = 16


class Stalls:
    """`walks`: walks over the open rounds for STATS; `shared`: answers that needed no new walk."""

    def __init__(self, terms: Terms, seats: Seats, open_: OpenRounds) -> None:
        self.walks = 0
        self.shared = 0
        self._terms = terms
        self._seats = seats
        self._open = open_
        self._walked: tuple[dict[str, Any], ...] = ()
        self._walk_from = 0.0  # when the next walk may be made

    def report(self, now: float, after: float) -> list[Output]:
        """Send STALL to every rank about rounds for which nothing has come in `after` seconds.

        The oldest rounds come first; each gets a log line.
        """
        stalled = self._open.stalled(now, after, MAX_STALLS)
        if not stalled:
            return []
        rows = tuple(stall_entry(round_, now) for round_ in stalled)
        logs = [self._log(round_, now) for round_ in stalled]
        return [self._seats.to_all(messages.Stall(rows)), *logs]

    def waiting(self, now: float, interval: float) -> tuple[dict[str, Any], ...]:
        """The oldest open rounds and their absent ranks; the rows may be `interval` seconds old."""
        if now >= self._walk_from:
            self._walk_from = now + interval
            oldest = islice(self._open, MAX_STALLS)
            self._walked = tuple(stall_entry(round_, now) for round_ in oldest)
            self.walks += 1
        else:
            self.shared += 1
        return self._walked

    def _log(self, round_: Round, now: float) -> Log:
        text = f"job {self._terms.title!r}: {stall_text(round_, now)}"
        fields = {**self._terms.about(), **about(round_)}
        return Log(self._terms.number, logging.WARNING, text, fields)
