"""A table, as a worker uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reducer.optimizers import NoOptimizer, Optimizer
from reducer.wire.codes import MAX_WEIGHT
from reducer.wire.table_messages import TableCall
from reducer_client.arrays import Array
from reducer_client.errors import StateLostError
from reducer_client.interrupts import EndOnInterrupt
from reducer_client.tables.context import TableContext
from reducer_client.tables.finite import has_blank_shard, is_within, name_bad_tensors
from reducer_client.tables.layout import Layout, Vector
from reducer_client.tables.modes import Mode, WireMode
from reducer_client.tables.pushes import not_finite
from reducer_client.tables.reads import Reads
from reducer_client.tables.receipts import Push
from reducer_client.tables.shared import Timeout, as_seconds
from reducer_client.tables.staging import Staging
from reducer_client.tables.table_state import TableState
from reducer_client.tables.tally import Counts, Staleness
from reducer_client.tables.versions import check_version


class Table:
    """Named float32 tensors that the workers of a job share, and that the reducers update.

    ``parameter_server(...).table(...)`` makes one. Any thread may call any method.

    Attributes:
        name: the name of the table.
        optimizer: the optimizer with which the reducers apply gradients.
        mode: when they apply them.
        shapes: the shape of each tensor, by name.
    """

    def __init__(self, state: TableState, interrupts: EndOnInterrupt) -> None:
        description = state.description
        self.name = description.layout.name
        self.optimizer: Optimizer = description.optimizer
        self.mode: Mode = description.mode
        self.shapes = {tensor.name: tensor.shape for tensor in description.layout.tensors}
        self._state = state
        self._table: TableContext = state.context
        self._layout: Layout = description.layout
        self._shared = state.context.shared
        self._interrupts = interrupts
        self._reads = Reads(state)
        self._bases = [0] * self._layout.shards
        self._last_push = 0

    def __repr__(self) -> str:
        return f"<Table {self.name!r} {self.mode} version={self.version}>"

    # --- pushes ---------------------------------------------------------------------------------

    def push(
        self,
        gradients: Mapping[str, object],
        copy: bool = True,
        timeout: Timeout | None = None,
        base: Sequence[int] | None = None,
        weight: int = 1,
    ) -> Push:
        """Send a gradient to the reducers. Returns before they have it.

        Args:
            gradients: for each tensor of the table, by its name, a float32 array of its shape:
                NumPy, or anything with the buffer protocol or ``__array__``.
            copy: False promises that the arrays stay unchanged until the receipt. They are then not
                copied if they lie behind each other in memory, in the order of the tensors, as the
                arrays of a `pull` do.
            timeout: seconds that the call may wait until all first values have come, and while too
                many pushes are in flight. None means the parameter server's ``timeout``.
            base: the value of `base` after the pull from which the gradient was computed, by
                default after the last pull. Not used in common steps.
            weight: in common steps, of how many gradients this is the sum: 65,536 at most, and with
                ``KOfN(k, "carry", bound)`` 1,048,576 / (bound + 1). The mean of a step is the sum
                of its pushes, divided by the sum of their weights.

        Raises:
            ValueError: names are missing or unknown, a shape differs, or the weight is out of
                range.
            TypeError: an array is not float32.
            NumericError: a value is NaN or Inf, or has a magnitude of 2^63 or more. Nothing was
                sent.
            RoundTimeoutError: the call had to wait for too long. Nothing was sent.
            StateLostError: a reducer has lost the table.
            ReducerError: the parameter server has ended.
        """
        self._check_writer("push")
        self._check_weight(weight)
        arrays = self._layout.check("a gradient", gradients)
        limit = as_seconds(timeout)
        staging, carried = self._acquire(
            None if copy or self._may_carry else self._layout.as_vector(arrays), arrays, limit
        )
        staging.weight = weight
        is_submitted = False
        try:
            self._fill(staging, arrays, carried)
            push = self._submit(staging, base)
            is_submitted = True
        finally:
            with self._shared.changed:
                if not is_submitted:
                    self._give_back(staging, carried)
                else:
                    for each in carried:
                        self._table.pool.release(each)
        return push

    def _acquire(
        self, borrowed: Vector | None, arrays: list[Array], limit: float | None
    ) -> tuple[Staging, list[Staging]]:
        steps = self._state.steps
        with self._shared.changed:
            self._check()
            self._table.wait_until(lambda: self._state.is_ready, limit, self._describe_first_values)
            self._state.drop_first_values()
            carried = steps.take_carried() if steps is not None else []
            if carried:
                borrowed = None  # the sum is ours
            try:
                keeps = None if borrowed is None else arrays
                return self._table.pool.acquire(limit, borrowed, keeps), carried
            except BaseException:
                if steps is not None:
                    steps.put_back(carried)
                raise

    def _fill(self, staging: Staging, arrays: list[Array], carried: list[Staging]) -> None:
        if staging.keeps is None:
            self._layout.copy_in(arrays, staging.vector)
        for each in carried:
            np.add(staging.vector, each.vector, out=staging.vector)
            staging.weight += each.weight
        if not is_within(staging.vector):
            with self._shared.changed:
                self._table.tally.refuse()
            raise not_finite(self._table, name_bad_tensors(self._layout, staging.vector))

    def _submit(self, staging: Staging, base: Sequence[int] | None) -> Push:
        with self._interrupts, self._shared.changed:
            self._check()
            bases = self._bases if base is None else self._checked(base)
            self._last_push += 1
            push = Push(self._shared, self.name, self._last_push)
            if self._state.pushes is not None:
                self._state.pushes.submit(push, staging, bases)
            elif self._state.steps is not None:
                self._state.steps.submit(push, staging)
        return push

    def _check_weight(self, weight: int) -> None:
        most = 1 if self._state.steps is None else self._state.steps.most_weight
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= most:
            raise ValueError(
                f"table {self.name!r}, mode {self.mode}: weight={weight!r:.60}: expected an "
                f"integer from 1 to {most:,}{self._why()}"
            )

    def _why(self) -> str:
        wire = self._state.description.wire
        if wire.late != "carry":
            return ""
        together = f"and together they weigh {MAX_WEIGHT:,} at most"
        return f": a push may carry {wire.bound:,} late ones, {together}"

    def _checked(self, base: Sequence[int]) -> list[int]:
        if len(base) != self._layout.shards:
            raise ValueError(
                f"table {self.name!r}: base: expected {self._layout.shards} versions, as `base` "
                f"has them after a pull, got {len(base)}"
            )
        return list(base)

    def _give_back(self, staging: Staging, carried: list[Staging]) -> None:
        self._table.pool.release(staging)
        if self._state.steps is not None:
            self._state.steps.put_back(carried)

    # --- pulls ----------------------------------------------------------------------------------

    def pull(
        self, out: Mapping[str, Array] | None = None, timeout: Timeout | None = None
    ) -> dict[str, Array]:
        """Fetch the parameters. Each shard has all pushes of this worker that came before the call.

        With SSP, the call waits until no other worker is too far behind; with common steps, until
        the step of the last push is over, and all tensors have one version. In the other modes the
        shards may have different versions.

        Args:
            out: for each tensor, by its name, a float32 array of its shape into which the values
                are written. After an error their contents are undefined.
            timeout: seconds; None means the parameter server's ``timeout``.

        Returns:
            ``out``, or new arrays that lie behind each other in memory.

        Raises:
            ValueError, TypeError: ``out`` does not fit the table.
            RoundTimeoutError: not all values came in time.
            StateLostError: a reducer has lost the table.
            ReducerError: the parameter server has ended.
        """
        self._shared.check_process()
        flat, arrays = self._target(out)
        versions = self._pull_into([flat], timeout)
        with self._shared.changed:
            self.has_seen(versions)
        return self._given(flat, arrays, out)

    def _target(self, out: Mapping[str, Array] | None) -> tuple[Vector, list[Array]]:
        """The vector to pull into, and the arrays into which it must be copied then."""
        if out is None:
            return np.empty(self._layout.count, np.float32), []
        arrays = self._outputs(out)
        direct = self._layout.as_vector(arrays)
        if direct is not None:
            return direct, []
        return np.empty(self._layout.count, np.float32), arrays

    def _given(
        self, flat: Vector, arrays: list[Array], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        if out is None:
            return dict(self._layout.views(flat))
        if arrays:
            self._layout.copy_out(flat, arrays)
        return dict(out)

    def _outputs(self, out: Mapping[str, Array]) -> list[Array]:
        arrays = self._layout.check("out", out)
        for tensor, array in zip(self._layout.tensors, arrays, strict=True):
            if not array.flags.writeable:
                raise ValueError(
                    f"out of table {self.name!r}: tensor {tensor.name!r} is read-only: give an "
                    "array that can be written"
                )
        return arrays

    def pull_version(
        self, version: int, out: Mapping[str, Array] | None = None, timeout: Timeout | None = None
    ) -> dict[str, Array]:
        """Fetch the values of exactly this version. Waits until the table has reached it.

        A table has its newest version, and with ``NoOptimizer(history=n)`` the n newest. The call
        changes nothing for the next push: see `go_on_from`.

        Args:
            version: from 0 on; a common step makes one.
            out, timeout: as for `pull`. After an error the contents of ``out`` are undefined.

        Raises the errors of `pull`, and for a version that is no integer from 0 on; StateLostError,
        with the reason "gone", for a version that the table does not have any more, and for one
        before the version with which it began.
        """
        check_version(f"pull_version of table {self.name!r}", version)
        flat, arrays = self._target(out)
        self._shared.check_process()
        limit = as_seconds(timeout)
        with self._shared.changed:
            self._check()
            seconds = self._shared.timeout if limit is None else limit
            newest = max(self._reads.into([flat], seconds, version))
        if newest > version:
            raise StateLostError(
                f"table {self.name!r} does not have version {version} any more: it is at version "
                f"{newest}, and keeps {self._kept} of its values",
                key=self.name,
                reason="gone",
            )
        if self._kept > 1 and has_blank_shard(self._layout, flat):
            raise StateLostError(
                f"table {self.name!r} has no version {version}: its values are NaN, as are those "
                "before the version with which a table begins",
                key=self.name,
                reason="gone",
            )
        return self._given(flat, arrays, out)

    def go_on_from(self, version: int) -> None:
        """The next gradient is computed from the values of this version.

        Raises TypeError or ValueError for a version that is no integer from 0 on.
        """
        check_version(f"go_on_from of table {self.name!r}", version)
        with self._shared.changed:
            self.has_seen([version] * self._layout.shards)

    @property
    def _kept(self) -> int:
        return self.optimizer.history if isinstance(self.optimizer, NoOptimizer) else 1

    def pull_arrays(self, into: Sequence[Vector], timeout: Timeout | None = None) -> list[int]:
        """Pull the parameters and, if there are more vectors, the slots of the optimizer.

        Changes nothing for the next push. Returns the versions of the shards. Raises the errors of
        `pull`.
        """
        self._shared.check_process()
        return self._pull_into(into, timeout)

    def _pull_into(self, into: Sequence[Vector], timeout: Timeout | None) -> list[int]:
        """Pull into vectors. Returns the versions of the shards."""
        limit = as_seconds(timeout)
        with self._shared.changed:
            self._check()
            return self._reads.into(into, self._shared.timeout if limit is None else limit)

    def has_seen(self, versions: list[int]) -> None:
        """Note the versions of the parameters of the next gradients. The caller holds the lock."""
        self._bases = list(versions)
        for shard, version in enumerate(versions):
            self._table.note_versions((shard,), version)
        if self._state.steps is not None:
            self._state.steps.pulled(min(versions))

    # --- the rest -------------------------------------------------------------------------------

    def clock(self) -> int:
        """End a clock of this worker. Returns the number of clocks that the worker has ended.

        The clock contains all pushes before this call. Pulls of other workers of an SSP table wait
        for the end of the clock.
        """
        self._check_writer("clock")
        if self._state.steps is not None:
            raise ValueError(f"table {self.name!r}, mode {self.mode}: its steps are its clock")
        with self._interrupts, self._shared.changed:
            self._check()
            self._state.clock += 1
            self._state.tell_clock()
            return self._state.clock

    @property
    def lr(self) -> float | None:
        """The learning rate that this worker knows; None if the optimizer has no learning rate.

        An assignment changes the learning rate on the reducers, for all later pushes. If all
        workers assign, the first worker that makes the n-th change decides it, so all workers
        should follow one schedule.
        """
        if self._state.rate >= 0:
            return self._state.rate
        return None if isinstance(self.optimizer, NoOptimizer) else self.optimizer.lr

    @lr.setter
    def lr(self, rate: float) -> None:
        self.set_lr(rate)

    def set_lr(self, rate: float, number: int | None = None) -> None:
        """Change the learning rate.

        Args:
            rate: from 0 on.
            number: the number of the change, by default 1 above the last change that this worker
                knows. A change does nothing unless its number is above the last change's.

        Raises ValueError if the optimizer has no learning rate, or refuses this one.
        """
        self._check_writer("set_lr")
        if isinstance(self.optimizer, NoOptimizer):
            raise ValueError(f"table {self.name!r} has no optimizer, and so no learning rate")
        self.optimizer.scalars(1, rate)  # raises
        with self._interrupts, self._shared.changed:
            self._check()
            state = self._state
            state.rate_number = state.rate_number + 1 if number is None else number
            state.rate = float(rate)
            message = TableCall("rate", name=self.name, rate=state.rate, number=state.rate_number)
            for partition in state.partitions:
                self._table.lanes.call(partition, message, self._layout.key, state.note_rate)

    @property
    def is_quiet(self) -> bool:
        """Whether no push is on its way. The caller holds the lock."""
        return self._state.is_empty or self._table.failure is not None

    @property
    def layout(self) -> Layout:
        """Where each tensor lies, and how the table is cut into shards."""
        return self._layout

    @property
    def wire_mode(self) -> WireMode:
        """The mode as the reducers know it."""
        return self._state.description.wire

    @property
    def version(self) -> int:
        """The newest version that this worker knows all shards to have."""
        return min(self._table.seen)

    @property
    def base(self) -> tuple[int, ...]:
        """The versions of the shards that the last pull of this worker has fetched."""
        return tuple(self._bases)

    @property
    def step(self) -> int:
        """The last common step that this worker knows to be over; in other modes the version."""
        return self.version if self._state.steps is None else self._state.steps.version

    @property
    def staleness(self) -> Staleness:
        """How many updates lay between this worker's pulls and its pushes."""
        return self._table.tally.staleness

    @property
    def counts(self) -> Counts:
        """The number of this worker's pushes by outcome."""
        return self._table.tally.counts

    @property
    def _may_carry(self) -> bool:
        """Whether a gradient may be read again after its receipt."""
        return self._state.description.wire.late == "carry"

    def _check_writer(self, call: str) -> None:
        self._shared.check_process()
        if self._state.is_reader:
            raise ValueError(f"table {self.name!r}: {call}: a reader may only pull")

    def _check(self) -> None:
        """Raises the error that has ended the table. The caller holds the lock."""
        self._table.check()
        self._shared.check()

    def _describe_first_values(self, limit: float) -> str:
        return (
            f"table {self.name!r}: first values are missing after {limit:g} s: does a worker make "
            "the table with initial=True?"
        )
