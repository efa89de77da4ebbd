"""Reducers are killed at the very moment at which a named frame of a table's protocol passes.

After each kill all pushes get their receipts, and the parameters are, to the unit, the ledger of
all receipts so far. All frames pass the proxies before the reducers: the frames of the workers, and
the frames between a primary and its backup.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from tests.support.counts import LONG
from tests.support.table_kills import ROLES, WHENS, Kills, Mode, Point

# Each frame of an update, and of a step, with the shard in whose partition it passes. Only the
# owner, which has shard 0, sends the news of sets and commits; the workers tell the others.
FRAMES: tuple[tuple[Mode, str, int], ...] = (
    ("async", "PUSH", 0),
    ("async", "LOG update", 0),
    ("async", "LOGGED", 0),
    ("async", "RECEIPT applied", 0),
    ("sync", "call enter", 0),
    ("sync", "news set", 0),
    ("sync", "LOG set", 0),
    ("sync", "call set", 1),
    ("sync", "PUSH", 1),
    ("sync", "RECEIPT held", 1),
    ("sync", "LOG mean", 1),
    ("sync", "LOGGED", 1),
    ("sync", "news folded", 1),
    ("sync", "call folded", 0),
    ("sync", "LOG commit", 0),
    ("sync", "news commit", 0),
    ("sync", "call commit", 1),
    ("sync", "RECEIPT applied", 1),
)
EVERY = [Point(*frame, role, when) for frame, role, when in product(FRAMES, ROLES, WHENS)]
SOME = [
    Point("async", "LOG update", 0, "primary", "after"),
    Point("async", "LOGGED", 0, "backup", "after"),
    Point("async", "RECEIPT applied", 0, "primary", "before"),
    Point("sync", "call set", 1, "primary", "after"),
    Point("sync", "news folded", 1, "backup", "before"),
    Point("sync", "LOG commit", 0, "primary", "after"),
]


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_wherever_a_reducer_dies(tmp_path: Path, job: str) -> None:
    with ExitStack() as stack:
        kills = Kills(stack, tmp_path, job)
        for point in EVERY if LONG else SOME:
            try:
                kills.at(point)
            except BaseException as error:
                error.add_note(f"at the point: {point}")
                raise
