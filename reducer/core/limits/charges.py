"""The account of a run's records on a lane: keys, names, rounds, texts.

The law: a record is charged before it is made, and its bytes are given back when it is forgotten.
Memory for records is reserved when the run forms (`budget.py`), so no job takes memory from
another job. `quotas.py` names the files that limit the rest of what a job takes.

The sizes are bytes as tracemalloc counts them in the compiled build, rounded up, including
containers and their largest growth. `tests/unit/core/limits/test_charges.py` measures them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from reducer.wire.errors import RecordsError

# The least cost of a chunk, in credit: a small chunk holds a buffer and records as well.
MIN_COST: Final = 4_096
# One rank: its places in the job's lists, its incarnation, its session, why that ended.
RANK: Final = 1_024
# One slot of a route: since, live and lanes, and the integers in these lists.
SLOT: Final = 112
# One number of a deal by weight, in the deal to all slots and in that to the live ones.
DEALT: Final = 32
# One stream: its record and its tables without keys.
STREAM: Final = 2_048
# One key: its record, its places in the tables of keys, of changes and of idle keys.
KEY: Final = 960
# A done position: its two places in the key's tree, and the integer.
KEY_RANK: Final = 48
# One round: its record, its places in the key and among the open rounds.
ROUND: Final = 1_120
# One chunk: its record, its place in the round, the dict of its parts.
CHUNK: Final = 736
# A place in a list: how many contributions a rank has sent to a round, or the CRC of one
# contribution to a chunk. The integers themselves, and a part's place in a dict, are small beside
# the cost of the contribution.
LIST_PLACE: Final = 8
# A rank in a set of a round: the ranks that have described or abandoned it, or were told its
# verdict.
MARK: Final = 128
# A rank's debt in a void round.
OWED: Final = 224
# A rank's own descriptor, if the ranks disagree.
OWN_DESCRIPTOR: Final = 224
# One plan that the job keeps, with its place in the table.
PLAN: Final = 512
# A text without its characters.
TEXT: Final = 80


def slot_bytes(slots: int, weights: Sequence[int]) -> int:
    """What the slots of a run take; `weights`: none if all slots are equal."""
    return SLOT * slots + DEALT * sum(weights)


class Records:
    """The bytes that a run's records take, and their limit.

    `used`: bytes of all records; `room`: the limit of `used`. `of_rounds`: bytes of rounds, chunks
    and descriptors. `reclaim(size)` forgets about `size` bytes of records that nobody needs, and
    returns how many.
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
        """Charge one more record; raises RecordsError if there is no room."""
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
            "more: does the job make new keys at each step? If not, raise --records, and --memory "
            "with it"
        )


def text_bytes(text: str) -> int:
    """The most bytes that a text takes, with the UTF-8 copy that Python keeps after the text was
    sent.
    """
    return TEXT + len(text) if text.isascii() else TEXT + 4 * len(text) + len(text.encode())
