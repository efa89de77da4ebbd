"""The credit of a run: what ranks have unanswered, which round they are granted, what they owe."""

from __future__ import annotations

from reducer.core.limits.budget import Window
from reducer.core.rounds.open_rounds import OpenRounds
from reducer.core.runs.debts import Debts
from reducer.core.runs.grants import Grants
from reducer.core.runs.ledger import Ledger
from reducer.core.runs.seats import Seats
from reducer.wire.header import Crc


class Flow:
    """One ledger, and who writes in it."""

    def __init__(self, window: Window, world_size: int, seats: Seats, crc: Crc) -> None:
        self.ledger = Ledger(window, world_size)
        self.open = OpenRounds()
        self.grants = Grants(self.ledger, self.open, seats, crc)
        self.debts = Debts(self.ledger, world_size)
