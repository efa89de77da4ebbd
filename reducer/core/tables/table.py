"""One table on one lane: its shards and its counters."""

from __future__ import annotations

from typing import Final

from reducer.core.surface.buffer import Buffer
from reducer.core.tables.clocks import Clocks
from reducer.core.tables.owner import StepOwner
from reducer.core.tables.shard import Shard
from reducer.core.tables.spec import Spec
from reducer.core.tables.step import StepSums
from reducer.core.tables.step_watch import StepWatch
from reducer.core.tables.workers import Workers
from reducer.wire.codes import Outcome
from reducer.wire.table_messages import Notice

# Bytes that a shard takes beside its arrays: its records, and the marks of some workers.
SHARD_BYTES: Final = 2_048
KEPT_SCALARS: Final = 16  # steps whose scalars are kept


class Counts:
    """The counters of a table. `staleness`: updates by the power of two above their staleness.

    `stale`: the sum of their staleness. `bytes_in`: payload of pushes, `bytes_out` of values.
    """

    __slots__ = (
        "applied", "bytes_in", "bytes_out", "dropped", "refused", "spoilt", "stale", "staleness",
    )  # fmt: skip

    def __init__(self) -> None:
        self.applied = 0
        self.dropped = 0
        self.refused = 0
        self.spoilt = 0  # updates that overflowed a parameter or a slot
        self.bytes_in = 0
        self.bytes_out = 0
        self.stale = 0
        self.staleness: dict[int, int] = {}

    def count(self, outcome: int, staleness: int) -> None:
        if outcome == Outcome.APPLIED:
            self.applied += 1
            self.stale += staleness
            power = staleness.bit_length()
            self.staleness[power] = self.staleness.get(power, 0) + 1
        elif outcome == Outcome.DROPPED:
            self.dropped += 1
        else:
            self.refused += 1


class Table:
    """`rate`: the present learning rate, None for the optimizer's own. `reserved`: bytes.

    `unready`: how many shards have no values yet. `committed`: the last step of mode step.
    `clocks` of mode ssp and async, `steps` and `owner` of mode step; `owner` and its `watch` only
    on the lane that has shard 0.
    """

    __slots__ = (
        "_scalars", "clocks", "committed", "contributors", "counts", "key", "name",
        "owner", "rate", "rate_number", "reserved", "shards", "spec", "steps", "unready", "watch",
        "workers",
    )  # fmt: skip

    def __init__(self, spec: Spec, workers: Workers) -> None:
        call = spec.call
        self.spec = spec
        self.key = spec.key
        self.name = call.name
        self.workers = workers
        self.rate: float | None = None if call.rate < 0 else call.rate
        self.rate_number = 0
        self.reserved = reserve_of(spec)
        self.counts = Counts()
        self.contributors: set[int] = set()  # workers for whose contributions memory is reserved
        self.shards = {
            number: Shard(
                number, spec.elements(number), spec.size(number), len(spec.slots), spec.has_history
            )
            for number in spec.numbers
        }
        self.unready = len(self.shards)
        self.committed = 0
        is_step = call.mode == "step"
        self.clocks = None if is_step else Clocks(call.workers if call.mode == "ssp" else 0)
        self.steps = StepSums() if is_step else None
        has_first = is_step and spec.owns_steps
        self.owner = StepOwner(call.quorum, call.workers, call.bound) if has_first else None
        self.watch = StepWatch(call, spec.part) if has_first else None
        self._scalars: dict[tuple[int, float | None], tuple[float, ...]] = {}

    @property
    def is_ready(self) -> bool:
        return not self.unready

    @property
    def version(self) -> int:
        """The least version of the lane's shards."""
        return min([shard.version for shard in self.shards.values()])

    @property
    def least_clock(self) -> int:
        return 0 if self.clocks is None else self.clocks.least

    def set_rate(self, rate: float, number: int) -> None:
        """Set a learning rate, unless a change with this or a greater number is known."""
        if number > self.rate_number:
            self.rate, self.rate_number = rate, number

    def scalars(self, step: int, rate: float | None) -> tuple[float, ...]:
        """The optimizer's scalars of a step. All shards take the same steps, at about one time."""
        found = self._scalars.get((step, rate))
        if found is None:
            if len(self._scalars) >= KEPT_SCALARS:
                self._scalars.clear()
            found = self._scalars[step, rate] = tuple(self.spec.optimizer.scalars(step, rate))
        return found

    def buffers(self) -> list[Buffer]:
        """All memory of the table, contributions included."""
        found = [array for shard in self.shards.values() for array in shard.arrays()]
        return found if self.steps is None else found + self.steps.buffers()

    def described(self, call: str) -> Notice:
        """The description of the table, with its version, step and learning rate."""
        wanted = self.spec.call
        return Notice(
            call=call,
            missing=not self.is_ready,
            ready=self.is_ready,
            version=self.version,
            name=self.name,
            count=wanted.count,
            shard=wanted.shard,
            partitions=wanted.partitions,
            partition=wanted.partition,
            optimizer=wanted.optimizer,
            mode=wanted.mode,
            bound=wanted.bound,
            workers=wanted.workers,
            quorum=wanted.quorum,
            late=wanted.late,
            tensors=wanted.tensors,
            size=self.reserved,
            rate=-1.0 if self.rate is None else self.rate,
            step=self.committed,
            clock=self.least_clock,
        )


def reserve_of(spec: Spec) -> int:
    """The bytes that a table reserves on the lane before it exists; the sums of a step count."""
    arrays = 1 + len(spec.slots) + (1 if spec.call.mode == "step" else 0)
    return spec.part * arrays + len(spec.numbers) * SHARD_BYTES


def reserve_of_contributor(spec: Spec) -> int:
    """The bytes that a worker's contribution to a step takes on the lane."""
    return spec.part
