"""A table as the connections to its lanes see it: its calls, news and end."""

from __future__ import annotations

from functools import partial

from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import ReducerError, StateLostError
from reducer_client.tables.calls import Call, call_item, refusal
from reducer_client.tables.context import TableContext
from reducer_client.tables.description import Description
from reducer_client.tables.first_values import FirstValues
from reducer_client.tables.outgoing import Item
from reducer_client.tables.pushes import Pushes
from reducer_client.tables.settings import READER
from reducer_client.tables.shared import logger
from reducer_client.tables.step_pushes import StepPushes
from reducer_client.tables.steps import Steps


class TableState:
    """The caller of each method holds the lock.

    ``clock``: the number of clocks that this worker has ended. ``partitions``: the partitions with
    shards.
    """

    def __init__(
        self, context: TableContext, description: Description, first: FirstValues | None
    ) -> None:
        layout = description.layout
        self.context = context
        self.description = description
        self.key = layout.key
        self.partitions = [each for each, shards in enumerate(layout.by_partition) if shards]
        self.clock = 0
        self.rate = -1.0  # the newest that this worker knows; -1: the optimizer's own
        self.rate_number = 0  # the number of the last change
        self.steps: StepPushes | None = None
        self.pushes: Pushes | None = None
        self._first = first
        self._ready: set[int] = set()
        self._registered: set[int] = set()
        if description.in_steps:
            wire = description.wire
            needs_all = wire.quorum == wire.workers
            steps = Steps(context.worker, self.partitions, layout.owner, needs_all)
            self.steps = StepPushes(context, steps, wire)
        else:
            self.pushes = Pushes(context)

    @property
    def is_reader(self) -> bool:
        return self.context.worker == READER

    @property
    def is_ready(self) -> bool:
        """Whether all lanes have their first values."""
        return len(self._ready) == len(self.partitions)

    @property
    def has_sent_values(self) -> bool:
        """Whether the lanes have answered all first values that this worker sent."""
        return self._first is None or self._first.are_there

    @property
    def is_empty(self) -> bool:
        """Whether no push is on its way."""
        parts = (self.pushes, self.steps)
        return all(part is None or part.is_empty for part in parts)

    @property
    def may_pull(self) -> bool:
        return self.steps is None or self.steps.may_pull

    def register(self) -> list[Call]:
        """Describe the table to its lanes, and ask for the learning rate."""
        lanes, describe = self.context.lanes, self.description.call
        calls = [
            lanes.call(each, describe(each), self.key, partial(self._described, each))
            for each in self.partitions
        ]
        if self.is_reader:  # a reader that brings the values of a checkpoint
            return calls
        # A change with number 0 changes nothing. The answer has the number of the last change, so
        # a worker that starts again goes on from that number.
        message = TableCall("rate", name=self.description.layout.name, rate=0.0, number=0)
        asked = [lanes.call(each, message, self.key, self.note_rate) for each in self.partitions]
        return calls + asked

    def note_rate(self, notice: Notice) -> None:
        """A lane tells the learning rate, and the number of its last change."""
        if not notice.code and notice.version >= self.rate_number:
            self.rate, self.rate_number = notice.rate, notice.version

    def tell_clock(self) -> None:
        for partition in self.partitions:
            self.context.lanes.put(partition, [self._clock_item()])

    def drop_first_values(self) -> None:
        """Free the first values if all lanes have them: no lane will ask again."""
        if self.is_ready and self.has_sent_values:
            self._first = None

    # --- events of the connections --------------------------------------------------------------

    def reopened(self, partition: int) -> tuple[list[Item], list[Item]]:
        if partition not in self._registered or self.context.failure is not None:
            return [], []  # the first call waits to be sent, or to be sent again
        then = partial(self._described_again, partition)
        call = Call(self.context.lanes.next_number(), self.description.call(partition), then)
        at_once = [call.item(self.key)]
        if self.steps is not None:
            more, behind = self.steps.reopened(partition)
            return at_once + more, behind
        return at_once, [self._clock_item()] if self.clock else []

    def lost_by(self, partition: int, where: str) -> None:
        layout = self.description.layout
        if not layout.by_partition[partition] or self.context.failure is not None:
            return
        if partition not in self._registered and not self.is_reader:
            return  # the lane never had a shard of the table
        self.fail(
            StateLostError(
                f"table {layout.name!r} is lost: {where} has started again and has no tables. "
                f"Worker {self.context.worker} knows version {min(self.context.seen)}. "
                f"Call drop({layout.name!r}), and make the table again from a checkpoint or from a "
                "worker's parameters",
                key=layout.name,
                reason="restarted",
            )
        )

    def news(self, partition: int, notice: Notice) -> None:
        if notice.call == "table":
            if notice.ready:
                self._ready.add(partition)
        elif notice.call == "evicted":
            self.fail(refusal(notice, f"table {notice.name!r}"))
        elif self.steps is not None:
            self.steps.take_news(notice)

    def refused(self, partition: int, notice: Notice) -> None:
        where = self.context.lanes.where(partition)
        if notice.call == "enter":
            self.fail(refusal(notice, where))
        else:
            logger.warning("%s: call %s was refused: %s", where, notice.call, notice.message)

    def fail(self, error: ReducerError) -> None:
        """The table has ended for this worker."""
        if self.context.failure is not None:
            return
        self.context.failure = error
        if self.pushes is not None:
            self.pushes.fail(error)
        if self.steps is not None:
            self.steps.fail(error)
        self.context.lanes.give_up(self.key)
        self.context.shared.changed.notify_all()

    # --- answers --------------------------------------------------------------------------------

    def _described(self, partition: int, notice: Notice) -> None:
        if notice.code:
            return  # the caller of `register` raises it
        self._registered.add(partition)
        if notice.ready:
            self._ready.add(partition)
        if notice.missing and self._first is not None:
            self.context.lanes.put(partition, self._first.items(partition))
        if notice.rate >= 0:
            self.rate = notice.rate
        if self.steps is not None:
            self.steps.saw(notice.version)
        shards = self.description.layout.by_partition[partition]
        self.context.note_versions(shards, notice.version)
        if notice.clock > self.clock:  # the lane has taken this worker in at that clock
            self.clock = notice.clock
            self.tell_clock()

    def _described_again(self, partition: int, notice: Notice) -> None:
        if notice.code:
            self.fail(refusal(notice, self.context.lanes.where(partition)))
        else:
            self._described(partition, notice)

    def _clock_item(self) -> Item:
        name = self.description.layout.name
        message = TableCall("clock", name=name, clock=self.clock)
        return call_item(self.context.lanes.next_number(), message, table=self.key)
