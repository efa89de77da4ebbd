"""One shard of a table: its arrays and version, the updates that it has seen, waiting pulls."""

from __future__ import annotations

from collections.abc import Sequence

from reducer.core.surface.buffer import Buffer
from reducer.core.tables.marks import Mark
from reducer.core.tables.workers import Seat


class WaitingPull:
    """A PULL that waits: for values, for a clock, for a version or for an update of its worker.

    `seq`: the worker's last update before the pull; 0: none.
    """

    __slots__ = ("clock", "cost", "has_slots", "number", "seat", "seq", "version")

    def __init__(
        self,
        seat: Seat,
        number: int,
        clock: int,
        version: int,
        has_slots: bool,
        cost: int,
        seq: int,
    ) -> None:
        self.seat = seat
        self.number = number
        self.clock = clock
        self.version = version
        self.has_slots = has_slots
        self.cost = cost
        self.seq = seq


class Shard:
    """`marks`: by worker, the marks of the worker's present start. `logged`: the version including
    the updates that are in the log and not applied yet.
    """

    __slots__ = (
        "count", "has_slots", "logged", "marks", "number", "parameters", "pulls", "size", "slots",
        "version",
    )  # fmt: skip

    def __init__(self, number: int, count: int, size: int, slots: int) -> None:
        self.number = number
        self.count = count
        self.size = size
        self.version = 0
        self.logged = 0
        self.parameters: Buffer | None = None
        self.slots: list[Buffer | None] = [None] * slots
        self.has_slots = False
        self.marks: dict[int, Mark] = {}
        self.pulls: list[WaitingPull] = []

    @property
    def is_ready(self) -> bool:
        return self.parameters is not None and self.has_slots

    def arrays(self) -> list[Buffer]:
        """The arrays that the shard has, the parameters first."""
        found = [] if self.parameters is None else [self.parameters]
        return found + [slot for slot in self.slots if slot is not None]

    def state(self) -> Sequence[Buffer]:
        """The slots of a shard that is ready."""
        return [slot for slot in self.slots if slot is not None]

    def mark_of(self, worker: int) -> Mark:
        mark = self.marks.get(worker)
        if mark is None:
            mark = self.marks[worker] = Mark()
        return mark
