"""The memory of a lane, and how much of it each job has reserved.

Numbers only; no memory is owned here. The law: every byte that a worker may send has room that was
reserved when the worker's run formed, so a lane never stops reading for lack of memory
(PROTOCOL.md, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reducer.core.limits.charges import MIN_COST, SLOT
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import MAX_CONTROL_BYTES
from reducer.wire.errors import QuotaError

# Shares for results that are not stable yet, in addition to one share for each rank's
# contributions. PROTOCOL.md, section 8, derives the number. A rank reports results as done before
# it sends the contributions that need their room.
SHARES_BESIDE_RANKS: Final = 3
# Chunks that one grant covers: the second chunk travels while the first is folded.
GRANT_CHUNKS: Final = 2
# Where memory is short, 1/n of each share is for the records of the run (`charges.py`), and at
# least LEAST_RECORDS bytes: enough for the ranks and for a small model.
PART_OF_SHARE: Final = 8
LEAST_RECORDS: Final = 32_768
# Bounds of the part of each share that is for control frames: one frame that a rank is still
# sending, and the frames that the rank has not read. Between the bounds this part is
# 1/PART_OF_SHARE as well.
LEAST_FRAMES: Final = MAX_CONTROL_BYTES
MOST_FRAMES: Final = 4 * MAX_CONTROL_BYTES
# A run reserves at most 1/n of the free memory if the run can work with that: other jobs, and
# groups of the same workers, come later.
PART_OF_FREE: Final = 4


@dataclass(frozen=True, slots=True)
class RankLimits:
    """What one rank may use on a lane, in bytes.

    `credit` is for unanswered contributions, and `grant` for those to the granted round; `largest`
    is the cost of the largest chunk. `records` and `frames` are for records and control frames.
    """

    credit: int
    grant: int
    largest: int
    records: int
    frames: int

    @property
    def unanswered(self) -> int:
        return self.credit + self.grant

    @property
    def unstable(self) -> int:
        """Limit of the cost of complete chunks that are not stable. Above it no contribution is
        taken.

        At the limit there is room for one more chunk. Ranks that report what they hold stay far
        below the limit.
        """
        return SHARES_BESIDE_RANKS * self.unanswered - self.largest

    @property
    def unread(self) -> int:
        """Limit of the bytes that wait in the lane for a rank that does not read.

        A rank that reads stays far below the limit: to the rank, a contribution is unanswered until
        it has read the result.
        """
        return self.unanswered + _headers(self.unanswered) + _stable(self.records) + self.frames

    def reserve(self, world_size: int) -> int:
        share = share_of(self.unanswered, self.records, self.frames)
        return (world_size + SHARES_BESIDE_RANKS) * share

    def room_for_records(self, world_size: int) -> int:
        """The part of `reserve` that is for records."""
        return (world_size + SHARES_BESIDE_RANKS) * self.records

    def room_for_chunks(self, world_size: int) -> int:
        """The part of `reserve` that is for the chunks of contributions and results."""
        return (world_size + SHARES_BESIDE_RANKS) * self.unanswered


def _headers(limit: int) -> int:
    """Room for headers of results: 128 bytes for each MIN_COST of `limit`; a header has 80."""
    return -(-limit // 32)


def _stable(records: int) -> int:
    """Room for the stable positions of all keys that fit in `records` bytes."""
    return records // 2


def share_of(limit: int, records: int = LEAST_RECORDS, frames: int = LEAST_FRAMES) -> int:
    """The bytes of one share of a run."""
    return limit + _headers(limit) + records + _stable(records) + frames


def _limit(share: int, records: int, frames: int) -> int:
    """How many unanswered bytes (credit + grant) a share allows: the inverse of `share_of`."""
    return (share - records - _stable(records) - frames) * 32 // 33


class Budget:
    """The memory of one lane, which runs reserve.

    `job_total` limits the memory of each job; 0: no limit but `total`. `reserved_for_chunks` is the
    part of `reserved` that is for chunks.
    """

    def __init__(self, total: int, credit: int, job_total: int = 0, records: int = 0) -> None:
        self.total = total
        self.reserved = 0
        self.reserved_for_chunks = 0
        self._credit = credit
        self._records = records
        self._job_total = job_total
        self._reserved_by: dict[str, int] = {}

    def open(
        self, job: str, world_size: int, table: ChunkTable, of_slots: int = SLOT
    ) -> RankLimits:
        """Reserve a run's memory; its slots take `of_slots` bytes of records.

        If memory is short, the credit shrinks down to one chunk, and the limits for records and
        control frames shrink with it. Raises QuotaError if not even one chunk fits.
        """
        largest = max(MIN_COST, *(chunk for _, chunk in table))
        free = self.total - self.reserved
        left = self._job_total - self._reserved_by.get(job, 0) if self._job_total else free
        bounded = left < free
        free = min(left, free)
        shares = world_size + SHARES_BESIDE_RANKS
        least = max(LEAST_RECORDS, 2 * of_slots // shares)
        needed = shares * share_of(2 * largest, least, LEAST_FRAMES)
        share = min(free, max(free // PART_OF_FREE, needed)) // shares
        records = max(least, min(self._records, share // PART_OF_SHARE))
        frames = max(LEAST_FRAMES, min(MOST_FRAMES, share // PART_OF_SHARE))
        if _limit(share, records, frames) < 2 * largest:
            records, frames = least, LEAST_FRAMES
        limit = _limit(share, records, frames)
        grant = GRANT_CHUNKS * largest
        if limit < largest + grant:
            grant = largest
        credit = min(max(self._credit, largest), limit - grant)
        if credit < largest:
            text = (
                f"job {job!r} needs {needed:,} bytes on each lane ({world_size} workers, chunks "
                f"of {largest:,}), but "
            )
            if bounded:
                text += f"{free:,} of the {self._job_total:,} that one job may have are left: "
                raise QuotaError(text + "raise --job-memory, or use smaller chunks")
            text += f"{free:,} of {self.total:,} are free: raise --memory, "
            raise QuotaError(text + "start more reducers, or use smaller chunks")
        limits = RankLimits(credit, grant, largest, records, frames)
        self._add(job, limits.reserve(world_size), limits.room_for_chunks(world_size))
        return limits

    @property
    def left_for_chunks(self) -> int:
        """Bytes of `total` that no run has reserved for anything but chunks."""
        return self.total - (self.reserved - self.reserved_for_chunks)

    def close(self, job: str, limits: RankLimits, world_size: int) -> None:
        self.give(job, limits.reserve(world_size), limits.room_for_chunks(world_size))

    def take(self, job: str, size: int, what: str) -> None:
        """Reserve `size` bytes for tables of the job; raises QuotaError, which names `what`."""
        free = self.total - self.reserved
        left = self._job_total - self._reserved_by.get(job, 0) if self._job_total else free
        if size > min(free, left):
            of = f"{self._job_total:,} that one job may have" if left < free else f"{self.total:,}"
            option = "--job-memory" if left < free else "--memory"
            raise QuotaError(
                f"job {job!r}: {what} needs {size:,} bytes on this lane, but {min(free, left):,} "
                f"of the {of} are free: raise {option}, or start more reducers"
            )
        self._add(job, size, 0)

    def give(self, job: str, size: int, for_chunks: int = 0) -> None:
        """Give back `size` bytes that runs of the job have reserved, `for_chunks` of them for
        chunks.
        """
        self._add(job, -size, -for_chunks)

    def _add(self, job: str, size: int, for_chunks: int) -> None:
        of_job, reserved = self._reserved_by.get(job, 0) + size, self.reserved + size
        if of_job:
            self._reserved_by[job] = of_job  # first: if this raises, nothing has changed
        else:
            self._reserved_by.pop(job, None)
        self.reserved = reserved
        self.reserved_for_chunks += for_chunks
