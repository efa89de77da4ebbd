"""The ranks with the largest numbers, for messages, reports and metrics of a bounded size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

MAX_RANKS: Final = 64
# For all runs of one job together, including groups: a metrics page takes 20 us for each rank.
MAX_RANKS_OF_JOB: Final = 1_024

N = TypeVar("N", int, float)


def most(numbers: Iterable[N], limit: int = MAX_RANKS) -> tuple[tuple[int, N], ...]:
    """(rank, number) of the ranks with the largest numbers above 0, the largest first."""
    rows = [(rank, number) for rank, number in enumerate(numbers) if number > 0]
    rows.sort(key=lambda row: -row[1])
    return tuple(rows[:limit])
