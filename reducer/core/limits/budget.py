"""Room on a lane: what each job has reserved of its memory.

Numbers only; no memory is owned here. The law: every byte that a worker may send has room that
was reserved when its job joined, so a lane never has to stop reading (PROTOCOL.md, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reducer.core.limits.records import MIN_COST, SLOT
from reducer.wire.codes import MAX_CONTROL_BYTES
from reducer.wire.errors import QuotaError
from reducer.wire.messages import ChunkTable

# Shares for the results that are not stable yet, beside one share for each rank's contributions.
# Results that a rank has not reported as done are: unanswered as the rank sees them (credit +
# grant); answered while the rank could send nothing, or before an earlier one of their key, by a
# new connection or a route (at most what was unanswered then); and less than half a credit, for
# which a rank makes no report. (A done report comes before the contributions that need its room.)
SHARES_BESIDE_RANKS: Final = 3
# Chunks that one grant covers: two, so that the next one travels while the first is folded.
GRANT_CHUNKS: Final = 2
# The part of each share that is kept for the records of the run (`records.py`) where memory is
# short, and the least: what the records of its ranks and of a small model need.
PART_OF_SHARE: Final = 8
LEAST_RECORDS: Final = 32_768
# Bounds of what each share keeps for control frames: one that a rank has not sent to its end, and
# those that the rank has not read. Within the bounds it is the same part of the share.
LEAST_FRAMES: Final = MAX_CONTROL_BYTES
MOST_FRAMES: Final = 4 * MAX_CONTROL_BYTES
# A run takes no more than this part of the free memory, if it can work with that: other jobs, and
# groups of its own workers, come after it.
PART_OF_FREE: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """Limits of a rank in bytes: unanswered, more under a grant, records, control frames."""

    credit: int
    grant: int
    largest: int
    records: int
    frames: int

    @property
    def limit(self) -> int:
        return self.credit + self.grant

    @property
    def unstable(self) -> int:
        """Limit of the cost of complete, unstable chunks; above it no contribution is taken.

        Below the limit one more fits. Ranks that report what they hold stay far below it.
        """
        return SHARES_BESIDE_RANKS * self.limit - self.largest

    @property
    def unread(self) -> int:
        """Limit of the bytes that wait in the lane for a rank that does not read.

        A rank that reads stays far below it, since it counts contributions as unanswered until it
        has read their results.
        """
        return self.limit + _headers(self.limit) + _stable(self.records) + self.frames

    def reserve(self, world_size: int) -> int:
        share = share_of(self.limit, self.records, self.frames)
        return (world_size + SHARES_BESIDE_RANKS) * share

    def room_for_records(self, world_size: int) -> int:
        """The part of `reserve` for records, of all ranks together."""
        return (world_size + SHARES_BESIDE_RANKS) * self.records


def _headers(limit: int) -> int:
    """Twice the headers of the results of so much cost, with MIN_COST for each contribution."""
    return -(-limit // 32)


def _stable(records: int) -> int:
    """The stable positions of all keys that such a share has room for."""
    return records // 2


def share_of(limit: int, records: int = LEAST_RECORDS, frames: int = LEAST_FRAMES) -> int:
    """The bytes that a run reserves on a lane for each of its ranks."""
    return limit + _headers(limit) + records + _stable(records) + frames


def _limit(share: int, records: int, frames: int) -> int:
    """The credit that a share allows: the inverse of `share_of`."""
    return (share - records - _stable(records) - frames) * 32 // 33


class Budget:
    """The memory of one lane, handed out to jobs; `job_total` is the most of one, 0: all."""

    def __init__(self, total: int, credit: int, job_total: int = 0, records: int = 0) -> None:
        self.total = total
        self.reserved = 0
        self._credit = credit
        self._records = records
        self._job_total = job_total
        self._reserved_by: dict[str, int] = {}

    def open(self, job: str, world_size: int, table: ChunkTable, slots: int = 1) -> Window:
        """Reserve a run's memory. The credit shrinks to the run's part of the rest, to one chunk.

        The limits for records and control frames shrink with it. Raises QuotaError if not even one
        chunk fits.
        """
        largest = max(MIN_COST, *(chunk for _, chunk in table))
        free = self.total - self.reserved
        left = self._job_total - self._reserved_by.get(job, 0) if self._job_total else free
        bounded = left < free
        free = min(left, free)
        shares = world_size + SHARES_BESIDE_RANKS
        least = max(LEAST_RECORDS, 2 * SLOT * slots // shares)
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
        window = Window(credit, grant, largest, records, frames)
        self._add(job, window.reserve(world_size))
        return window

    def close(self, job: str, window: Window, world_size: int) -> None:
        self.give(job, window.reserve(world_size))

    def give(self, job: str, size: int) -> None:
        """Give back so many bytes that the job's runs had reserved."""
        self._add(job, -size)

    def _add(self, job: str, size: int) -> None:
        of_job, reserved = self._reserved_by.get(job, 0) + size, self.reserved + size
        if of_job:
            self._reserved_by[job] = of_job  # first: where this fails, nothing has changed
        else:
            self._reserved_by.pop(job, None)
        self.reserved = reserved
