"""Pushes to a table whose workers take common steps (modes sync and k of n)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from reducer.wire.codes import MAX_WEIGHT, Outcome
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import ReducerError
from reducer_client.tables.calls import call_item
from reducer_client.tables.context import TableContext
from reducer_client.tables.modes import WireMode
from reducer_client.tables.outgoing import Item
from reducer_client.tables.pushes import Delivery, push_header, push_item
from reducer_client.tables.receipts import Push, Receipt
from reducer_client.tables.staging import Staging
from reducer_client.tables.steps import Choice, Decided, Order, Say, SendGradient, Steps

_MOST_WEIGHT = MAX_WEIGHT >> 4  # of a push


class StepPushes:
    """Carries out the orders of `Steps`. The caller of each method holds the lock.

    Pushes enter one after the other: a push waits until the lanes have applied the push before it,
    or until the push before it is in no step.

    ``rate``: the learning rate of the newest set; -1 before the first set. ``most_weight``: the
    greatest weight of a push, so that it can carry all pushes of the steps that left it out.
    """

    def __init__(self, table: TableContext, steps: Steps, wire: WireMode) -> None:
        self.rate = -1.0
        carried = wire.bound if wire.late == "carry" else 0
        self.most_weight = max(1, min(_MOST_WEIGHT, MAX_WEIGHT // (carried + 1)))
        self._table = table
        self._steps = steps
        self._late = wire.late
        self._queue: deque[tuple[Push, Staging]] = deque()
        self._entered: tuple[Push, Staging] | None = None
        self._sent: Delivery | None = None  # the entered gradient, on its way
        # Gradients that are in a step, until all lanes have applied them.
        self._ending: dict[Delivery, int] = {}  # the step of each
        self._carried: list[Staging] = []

    @property
    def may_pull(self) -> bool:
        """Whether all pushes were sent or are decided.

        A pull that waits for the version of a step must be behind the step's gradient.
        """
        return not self._queue and (not self._steps.is_open or self._steps.was_sent)

    @property
    def is_empty(self) -> bool:
        """Whether no push is on its way."""
        return not (self._queue or self._entered or self._ending)

    @property
    def least_version(self) -> int:
        """The version from which a pull sees the end of all pushes."""
        return self._steps.last

    @property
    def version(self) -> int:
        return self._steps.version

    def take_carried(self) -> list[Staging]:
        """The gradients that the next push must add to itself. The caller releases them."""
        carried, self._carried = self._carried, []
        return carried

    def put_back(self, carried: list[Staging]) -> None:
        """The push was refused: the next push must add its carried gradients."""
        self._carried = carried + self._carried

    def submit(self, push: Push, staging: Staging) -> None:
        self._queue.append((push, staging))
        self._advance()

    def take_news(self, notice: Notice) -> None:
        step, generation = notice.step, notice.generation
        if notice.call == "set":
            self.rate = notice.rate
            choice = Choice(step, generation, notice.members, notice.weights, notice.rate)
            self._obey(self._steps.take_set(choice))
        elif notice.call == "late":
            self._obey(self._steps.take_late(step))
        elif notice.call == "folded":
            self._obey(self._steps.take_folded(step, generation, notice.partition))
        elif notice.call == "commit":
            self._obey(self._steps.take_commit(step, generation, notice.members))

    def pulled(self, version: int) -> None:
        self._obey(self._steps.pulled(version))

    def saw(self, version: int) -> None:
        self._obey(self._steps.saw(version))

    def reopened(self, partition: int) -> tuple[list[Item], list[Item]]:
        """The calls that a lane may have missed: to be sent at once, and behind all pushes."""
        orders = self._steps.reopened(partition)
        entering = [order for order in orders if isinstance(order, Say) and order.call == "enter"]
        at_once = [order for order in orders if order not in entering]
        return [self._call(order) for order in at_once], [self._call(order) for order in entering]

    def fail(self, error: ReducerError) -> None:
        """All pushes on their way end with this error. Their memory is not used again."""
        entered = [self._entered] if self._entered else []
        for push, _ in [*self._queue, *entered]:
            push.settle(error)
        for delivery in self._ending:
            delivery.push.settle(error)
        self._queue.clear()
        self._ending.clear()
        self._entered = None

    def _advance(self) -> None:
        if self._queue and not self._steps.is_open and not self._ending:
            self._entered = self._queue.popleft()
            self._obey(self._steps.enter(self._entered[1].weight))

    def _obey(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Say):
                # A change of the learning rate before `enter` must stay before it.
                is_urgent = order.call != "enter"
                self._table.lanes.put(order.partition, [self._call(order)], urgent=is_urgent)
            elif isinstance(order, SendGradient):
                self._send(order.step)
            else:
                self._end(order)
        self._table.shared.changed.notify_all()

    def _call(self, order: Order) -> Item:
        assert isinstance(order, Say)
        message = TableCall(
            order.call,
            name=self._table.layout.name,
            step=order.step,
            generation=order.generation,
            weight=order.weight,
            members=order.members,
            weights=order.weights,
            rate=order.rate,
        )
        return call_item(self._table.lanes.next_number(), message, table=self._table.layout.key)

    def _send(self, step: int) -> None:
        assert self._entered is not None
        push, staging = self._entered
        table, layout = self._table, self._table.layout
        staging.uses += 1
        self._sent = Delivery(push, staging, layout.shards, self._receipted, self._answered)
        for partition, shards in enumerate(layout.by_partition):
            headers = [push_header(table, shard, step, step - 1) for shard in shards]
            items = [push_item(table, header, staging, self._sent) for header in headers]
            table.lanes.put(partition, items)

    def _receipted(self, header: Header) -> None:
        if header.flags == Outcome.APPLIED:
            self._table.note_versions((header.chunk,), header.count)
        self._obey(self._steps.take_outcome(header.round, header.flags == Outcome.APPLIED))

    def _answered(self, delivery: Delivery) -> None:
        """All lanes have answered: they have applied the gradient, or discarded it."""
        self._table.pool.release(delivery.staging)
        if delivery in self._ending:
            step = self._ending.pop(delivery)
            self._settle(delivery.push, delivery.staging, "applied", 0, step)
            self._advance()

    def _end(self, order: Decided) -> None:
        assert self._entered is not None
        (push, staging), self._entered = self._entered, None
        sent, self._sent = self._sent, None
        step, version = order.step, self._steps.version
        if order.is_in:
            assert sent is not None
            if sent.left:
                self._ending[sent] = step
            else:
                self._settle(push, staging, "applied", 0, step)
        else:
            outcome: Literal["carried", "dropped"] = "dropped"
            if self._may_carry(staging):
                outcome = "carried"
                staging.uses += 1
                self._carried.append(staging)
            self._settle(push, staging, outcome, max(0, version - step + 1), version)
        self._table.pool.release(staging)
        self._advance()

    def _may_carry(self, staging: Staging) -> bool:
        """Whether a late push can be in the next one. A worker that was taken out and has come back
        is late more often than the bound says, and the weight of one push has a limit.
        """
        if self._late != "carry":
            return False
        weight = staging.weight + sum(each.weight for each in self._carried)
        return weight + self.most_weight <= MAX_WEIGHT

    def _settle(
        self,
        push: Push,
        staging: Staging,
        outcome: Literal["applied", "carried", "dropped"],
        staleness: int,
        version: int,
    ) -> None:
        receipt = Receipt(outcome, version, staleness, (version, version), staging.weight)
        self._table.tally.add(receipt)
        push.settle(receipt)
