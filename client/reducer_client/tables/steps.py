"""The worker's side of a table's steps (PROTOCOL.md, section 17): events in, orders out. Pure.

Laws:

- A gradient is in a step if the step was committed with this worker in its set, and never
  otherwise. Until the commit nothing is decided: the owner may choose another set.
- Each member of the set tells the set to the lanes that do not own the steps. Each worker tells
  them the commit. So a step ends although the owner's connection to a worker, or a worker, is lost.
- Repeats change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True)
class Say:
    """Send a call to the lane of a partition."""

    partition: int
    call: str
    step: int
    generation: int = 0
    weight: int = 1
    members: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    rate: float = -1.0


@dataclass(frozen=True)
class SendGradient:
    """Send the entered gradient to all lanes, as the gradient of this step."""

    step: int


@dataclass(frozen=True)
class Decided:
    """The gradient of this step is in the table (``is_in``), or will never be."""

    step: int
    is_in: bool


Order: TypeAlias = Say | SendGradient | Decided


class Choice(NamedTuple):
    """A set; a later one is greater."""

    step: int
    generation: int
    members: tuple[int, ...]
    weights: tuple[int, ...]
    rate: float


_NO_CHOICE = Choice(0, 0, (), (), -1.0)


class Steps:
    """One worker's steps of one table.

    Args:
        worker: this worker's number.
        partitions: the partitions with shards of the table.
        owner: the partition that owns the steps.
        needs_all: whether each set is all workers, so that a gradient can be sent at once.
        version: the version of the values that this worker has.

    ``version``: the newest known version of the table. ``last``: the step that was entered last. A
    pull of version ``last`` or later shows the end of that step.
    """

    def __init__(
        self, worker: int, partitions: Iterable[int], owner: int, needs_all: bool, version: int = 0
    ) -> None:
        self.version = version
        self.last = version
        self._base = version  # the newest version that this worker has pulled
        self.was_sent = False  # whether the entered gradient was sent
        self._worker = worker
        self._partitions = frozenset(partitions)
        self._others = sorted(self._partitions - {owner})
        self._owner = owner
        self._needs_all = needs_all
        self._entered = 0  # the step whose gradient is undecided; 0: none
        self._weight = 1
        self._choice = _NO_CHOICE
        self._folding = (0, 0)  # the (step, generation) of the newest `folded`
        self._folded: set[int] = set()
        self._committed = (0, 0)

    @property
    def is_open(self) -> bool:
        """Whether a gradient was entered and is undecided."""
        return self._entered > 0

    # --- events ---------------------------------------------------------------------------------

    def enter(self, weight: int = 1) -> list[Order]:
        """A gradient is ready: enter the step behind the version from which it was computed.

        That version is the newest pulled version, or the end of the last entered step.
        """
        assert not self._entered
        self.last = self._entered = max(self._base, self.last) + 1
        self._weight = weight
        self.was_sent = False
        if self.last <= self.version:
            return [self._decide(False)]
        return [self._enter(), *self._send_if_chosen()]

    def take_set(self, choice: Choice) -> list[Order]:
        if choice[:2] <= self._choice[:2] or choice[:2] <= self._committed:
            return []
        self._choice = choice
        relays = self._tell_set() if self._worker in choice.members else []
        return [*relays, *self._send_if_chosen()]

    def take_late(self, step: int) -> list[Order]:
        """Decides nothing without a commit: a set that has this worker may follow."""
        return self._decide_unsent() if step <= self.version else []

    def take_folded(self, step: int, generation: int, partition: int) -> list[Order]:
        if (step, generation) < self._folding:
            return []
        if (step, generation) > self._folding:
            self._folding = (step, generation)
            self._folded = set()
        before = self._is_folded
        self._folded.add(partition)
        return self._tell_folded() if self._is_folded and not before else []

    def take_commit(self, step: int, generation: int, members: tuple[int, ...] = ()) -> list[Order]:
        if (step, generation) <= self._committed:
            return []
        self._committed = (step, generation)
        self.version = max(self.version, step)
        if not members and self._choice[:2] == self._committed:
            members = self._choice.members
        orders: list[Order] = [*self._tell_commit()]
        if self._entered == step and members:
            orders.append(self._decide(self._worker in members))
        return orders + self._decide_unsent()

    def take_outcome(self, step: int, is_in: bool) -> list[Order]:
        """A lane has answered the gradient of a step. This decides where `commit` was missed."""
        return [self._decide(is_in)] if step == self._entered and self.was_sent else []

    def pulled(self, version: int) -> list[Order]:
        """This worker has the values of this version of the whole table."""
        self._base = max(self._base, version)
        return self.saw(version)

    def saw(self, version: int) -> list[Order]:
        """The whole table has at least this version."""
        self.version = max(self.version, version)
        return self._decide_unsent()

    def reopened(self, partition: int) -> list[Order]:
        """The orders that a lane may have missed before its new connection."""
        orders: list[Order] = []
        if partition == self._owner:
            if self._entered:
                orders.append(self._enter())
            if self._is_folded and self._folding > self._committed:
                orders += self._tell_folded()
            return orders
        if self._committed[0]:
            orders += self._tell_commit([partition])
        if self._choice[:2] > self._committed and self._worker in self._choice.members:
            orders += self._tell_set([partition])
        return orders

    # --- orders ---------------------------------------------------------------------------------

    def _enter(self) -> Say:
        return Say(self._owner, "enter", self._entered, weight=self._weight)

    def _send_if_chosen(self) -> list[Order]:
        chosen = self._choice.step == self._entered and self._worker in self._choice.members
        if not self._entered or self.was_sent or not (chosen or self._needs_all):
            return []
        self.was_sent = True
        return [SendGradient(self._entered)]

    def _tell_set(self, partitions: list[int] | None = None) -> list[Order]:
        to = self._others if partitions is None else partitions
        step, generation, members, weights, rate = self._choice
        return [
            Say(each, "set", step, generation, members=members, weights=weights, rate=rate)
            for each in to
        ]

    def _tell_folded(self) -> list[Order]:
        return [Say(self._owner, "folded", *self._folding)]

    def _tell_commit(self, partitions: list[int] | None = None) -> list[Order]:
        to = self._others if partitions is None else partitions
        return [Say(each, "commit", *self._committed) for each in to]

    @property
    def _is_folded(self) -> bool:
        return self._folded >= self._partitions

    def _decide(self, is_in: bool) -> Decided:
        step, self._entered = self._entered, 0
        return Decided(step, is_in)

    def _decide_unsent(self) -> list[Order]:
        """No set of a step that is over had a worker that sent no gradient."""
        is_over = 0 < self._entered <= self.version
        return [self._decide(False)] if is_over and not self.was_sent else []
