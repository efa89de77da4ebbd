"""The account of a run's records on a lane: keys, names, rounds, texts.

The law: a record is charged before it is made and given back when it is forgotten. The memory for
records is reserved when the run is complete, so that no job takes memory from another job.

The sizes are bytes as tracemalloc counts them in the compiled build, containers and their largest
growth included, rounded up; `tests/unit/core/limits/test_records.py` measures them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reducer.wire.errors import RecordsError

# What a chunk costs at least, in credit: a small one still holds a buffer and its records.
MIN_COST: Final = 4_096
# One rank: its places in the job's lists, its incarnation, its session, why it was lost.
RANK: Final = 1_024
# One slot of a route: since, live and lanes, and the integers in these lists.
SLOT: Final = 112
# The chunks of one home slot: the stream and its tables without keys.
STREAM: Final = 2_048
# One key: its record, its places in the tables of keys, of changes and of idle keys.
KEY: Final = 960
# A done position: its two places in the key's tree, and the integer.
KEY_RANK: Final = 48
# One round: its record, its places in the key and among the open rounds.
ROUND: Final = 1_120
# One chunk: its record, its place in the round, the dict of its parts.
CHUNK: Final = 736
# Contributions of one rank to a round, or the CRC of one to a chunk: the place in a list. The
# integers, and the places of parts in a dict, are small beside the cost of each contribution.
LIST_PLACE: Final = 8
# A rank in a set of a round: who has described, abandoned, been told.
MARK: Final = 128
# A rank's own cost, where the round is void.
OWED: Final = 224
# A rank's own descriptor, where the ranks disagree.
WORD: Final = 224
# One plan that the job keeps, with what it is found by.
PLAN: Final = 512
# A text without its characters.
TEXT: Final = 80


class Records:
    """The bytes that a run's records take, and their limit.

    `of_rounds`: bytes of rounds, of their chunks, and of the ranks' descriptors. `reclaim` forgets
    about so many bytes of records that nobody needs, and returns how many.
    """

    __slots__ = ("_job", "_reclaim", "keys", "of_rounds", "room", "rounds", "used")

    def __init__(self, job: str, room: int, reclaim: Callable[[int], int]) -> None:
        self._job = job
        self._reclaim = reclaim
        self.room = room
        self.used = 0
        self.keys = 0
        self.rounds = 0
        self.of_rounds = 0

    def take(self, size: int) -> None:
        """Charge one more record; raises RecordsError where it has no room."""
        used = self.used + size
        if used > self.room:
            self._reclaim(used - self.room)
            used = self.used + size
            if used > self.room:
                raise self._full(size)
        self.used = used

    def give(self, size: int) -> None:
        self.used -= size

    def half_free(self, size: int) -> bool:
        """Whether half of the limit is free, so that optional records may be made."""
        return 2 * (self.used + size) <= self.room

    def _full(self, size: int) -> RecordsError:
        return RecordsError(
            f"job {self._job!r} has filled the {self.room:,} bytes that this lane keeps for the "
            f"records of its run ({self.keys:,} keys, {self.rounds:,} rounds), and needs {size:,} "
            "more: are keys made anew each step? Else raise --records, and --memory with it"
        )


def text_bytes(text: str) -> int:
    """Most bytes that a text takes, with the UTF-8 copy that exists once the text was sent."""
    return TEXT + len(text) if text.isascii() else TEXT + 4 * len(text) + len(text.encode())
