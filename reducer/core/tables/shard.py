"""One shard of a table: its arrays and version, the updates that it has seen, waiting pulls."""

from __future__ import annotations

from collections.abc import Sequence

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Apply
from reducer.core.tables.marks import Mark
from reducer.core.tables.workers import Seat


class WaitingPull:
    """A PULL that waits: for values, for a clock, for a version or for an update of its worker.

    `seq`: the worker's last update before the pull; 0: none. `is_exact`: it wants this version, and
    no later one.
    """

    __slots__ = ("clock", "cost", "has_slots", "is_exact", "number", "seat", "seq", "version")

    def __init__(
        self,
        seat: Seat,
        number: int,
        clock: int,
        version: int,
        has_slots: bool,
        is_exact: bool,
        cost: int,
        seq: int,
    ) -> None:
        self.seat = seat
        self.number = number
        self.clock = clock
        self.version = version
        self.has_slots = has_slots
        self.is_exact = is_exact
        self.cost = cost
        self.seq = seq


class Shard:
    """`marks`: by worker, the marks of the worker's present start. `logged`: the version including
    the updates that are in the log and not applied yet. `is_history`: the slots are the values
    before the parameters, the latest first.
    """

    __slots__ = (
        "count", "has_slots", "is_history", "logged", "marks", "number", "parameters", "pulls",
        "size", "slots", "version",
    )  # fmt: skip

    def __init__(
        self, number: int, count: int, size: int, slots: int, is_history: bool = False
    ) -> None:
        self.number = number
        self.count = count
        self.size = size
        self.is_history = is_history
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

    def array_of(self, version: int) -> Buffer | None:
        """The value of exactly this version, if the shard, which is ready, has it."""
        age = self.version - version
        if not age:
            return self.parameters
        return self.slots[age - 1] if self.is_history and 0 < age <= len(self.slots) else None

    def apply(self, work: int, rule: int, gradient: Buffer, scalars: tuple[float, ...]) -> Apply:
        """The next step of a shard that is ready.

        A history turns at once: the oldest array becomes the newest. So outputs that follow find
        each value in its place.
        """
        newest, state = self.parameters, self.state()
        assert newest is not None
        if self.is_history:
            newest, state = self._turn(newest), ()
        return Apply(work, rule, self.count, newest, gradient, state, scalars)

    def _turn(self, newest: Buffer) -> Buffer:
        oldest = self.slots.pop()
        assert oldest is not None
        self.slots.insert(0, newest)
        self.parameters = oldest
        return oldest

    def mark_of(self, worker: int) -> Mark:
        mark = self.marks.get(worker)
        if mark is None:
            mark = self.marks[worker] = Mark()
        return mark
