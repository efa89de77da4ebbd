"""Counts this worker's pushes to a table by outcome, and their staleness."""

from __future__ import annotations

from dataclasses import dataclass, field

from reducer_client.tables.receipts import Receipt


@dataclass(frozen=True)
class Counts:
    """The pushes of this worker by outcome. ``refused``: gradients that were not finite."""

    applied: int = 0
    dropped: int = 0
    carried: int = 0
    partial: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Staleness:
    """Staleness of this worker's pushes: updates between their pull and their application."""

    last: int = 0
    mean: float = 0.0
    greatest: int = 0


@dataclass
class Tally:
    _outcomes: dict[str, int] = field(default_factory=dict)
    _pushes: int = 0
    _sum: int = 0
    _last: int = 0
    _greatest: int = 0

    def add(self, receipt: Receipt) -> None:
        self._count(receipt.outcome)
        self._pushes += 1
        self._sum += receipt.staleness
        self._last = receipt.staleness
        self._greatest = max(self._greatest, receipt.staleness)

    def refuse(self) -> None:
        self._count("refused")

    @property
    def counts(self) -> Counts:
        return Counts(**self._outcomes)

    @property
    def staleness(self) -> Staleness:
        mean = self._sum / self._pushes if self._pushes else 0.0
        return Staleness(self._last, mean, self._greatest)

    def _count(self, outcome: str) -> None:
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
