"""The parameter server, as a worker uses it: makes, finds and drops tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from reducer.optimizers import Optimizer
from reducer.optimizers.fields import KINDS
from reducer.wire.codes import MAX_TABLE_NAME_BYTES
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import ClosedError, ProtocolError, ReducerError, RoundTimeoutError
from reducer_client.interrupts import EndOnInterrupt
from reducer_client.registry.daemon import DaemonRegistry
from reducer_client.registry.interface import Registry
from reducer_client.tables.calls import Call
from reducer_client.tables.checkpoints import CheckpointError, SavePolicy, TableImage, save
from reducer_client.tables.checkpoints import load as load_images
from reducer_client.tables.context import TableContext
from reducer_client.tables.description import Description, TableInfo, describe, digest_of
from reducer_client.tables.first_values import FirstValues
from reducer_client.tables.images import (
    image_of,
    mode_of,
    rate_of,
    tensors_of,
    vectors_of,
    versions_for,
)
from reducer_client.tables.lanes import Lanes
from reducer_client.tables.layout import find_tensors, make_layout
from reducer_client.tables.modes import GivenMode, find_mode
from reducer_client.tables.settings import READER, Settings
from reducer_client.tables.shared import Shared, Timeout, as_seconds
from reducer_client.tables.supervisor import Supervisor, step_of
from reducer_client.tables.table import Table
from reducer_client.tables.table_state import TableState
from reducer_client.tables.versions import check_version
from reducer_client.trust import Trust

_CLOSE_SECONDS = 5.0  # for the receipts of pushes on their way
_LOOK_AGAIN = 0.1  # seconds until `attach` looks for a table again
_LIST_SECONDS = 1.0  # for the answers to one look, at least


class ParameterServer:
    """The tables of a job, on its reducers. A context manager: it closes at the end of the block.

    Attributes:
        job: the job whose tables these are.
        worker: this worker's number; None for a reader.
        workers: the number of workers; None if it is not known.
    """

    def __init__(self, settings: Settings, trust: Trust, registry: Registry | None = None) -> None:
        self.job = settings.job
        self.worker = None if settings.worker == READER else settings.worker
        self.workers = settings.workers
        self._number = settings.worker
        self._shared = Shared(settings.timeout)
        self._interrupts = EndOnInterrupt(self._end_on_interrupt)
        self._own_registry: DaemonRegistry | None = None
        if settings.replicas and registry is None:
            registry = self._own_registry = DaemonRegistry(
                settings.registry, settings.job, key=trust.key, tls=trust.tls
            )
        self._lanes = Lanes(settings, trust, self._shared, registry)
        self._tables: dict[str, Table] = {}
        self._supervisors: list[Supervisor] = []
        try:
            self._lanes.open()
        except BaseException:
            self._disconnect()
            raise

    def __repr__(self) -> str:
        return f"<ParameterServer job={self.job!r} worker={self.worker} lanes={self.lanes}>"

    @property
    def lanes(self) -> int:
        """The number of lanes over which tables are spread."""
        return self._lanes.partitions

    def table(
        self,
        name: str,
        tensors: Mapping[str, object] | Iterable[tuple[str, object]],
        *,
        optimizer: Optimizer,
        mode: GivenMode = "async",
        initial: bool = True,
        version: int = 0,
        timeout: Timeout | None = None,
    ) -> Table:
        """Make a table, or take part in one that another worker has made.

        All workers describe the table in the same way.

        Args:
            name: the name of the table; 256 bytes at most.
            tensors: the first values, as ``{name: array}`` or as pairs. The arrays must be float32,
                and are copied.
            optimizer: from `reducer.optimizers`. With ``NoOptimizer()`` the table holds the mean of
                the last step, or the last push; with ``history=n`` the last n means.
            mode: ``"async"``, ``"sync"``, `Async`, `SSP`, `Sync` or `KOfN`.
            initial: False: this worker brings no first values; only the shapes of ``tensors``
                count. A pull then waits until another worker has brought them.
            version: the version of the first values: above 0 if they are from a checkpoint.
            timeout: seconds; None means the parameter server's ``timeout``.

        Raises:
            ValueError, TypeError: an argument is not as above.
            MismatchError: another worker has described the table differently, or has other first
                values. The text has both descriptions.
            QuotaExceededError: a reducer has too little memory.
            RoundTimeoutError: the reducers did not answer in time.
        """
        if self.worker is None:
            raise ValueError(f"table {name!r}: a reader cannot make it: use attach({name!r})")
        self._check_name(name)
        check_version(f"table {name!r}", version)
        if not isinstance(optimizer, tuple(KINDS.values())):
            raise TypeError(
                f"table {name!r}: optimizer={optimizer!r:.100}: expected one of reducer.optimizers "
                f"({', '.join(kind.__name__ for kind in KINDS.values())})"
            )
        found, arrays = find_tensors(name, tensors)
        layout = make_layout(name, found, self.lanes)
        wire = find_mode(mode).on_the_wire(self.workers)
        first: FirstValues | None = None
        digest = b""
        if initial:
            flat = layout.empty_vector()
            layout.copy_in(arrays, flat)
            digest = digest_of(flat)
            versions = [version] * layout.shards
            first = FirstValues(self._shared, layout, self._number, [flat], versions)
        description = Description(layout, optimizer, wire, digest)
        table = self._register(description, first, as_seconds(timeout))
        if initial and version:
            table.go_on_from(version)
        return table

    def restore(
        self, image: TableImage, *, mode: GivenMode | None = None, timeout: Timeout | None = None
    ) -> Table:
        """Make a table from a checkpoint's image, with its slots, versions and learning rate.

        The reducers and their number may differ from the save. Every worker may restore
        the same image; a worker without the checkpoint uses `attach`.

        Args:
            image: from `load_images`, or `reducer_client.tables.checkpoints.load`.
            mode: another mode than the table had.
            timeout: seconds; None means the parameter server's ``timeout``.

        Raises the errors of `table`, and CheckpointError for an image without versions.
        """
        self._check_name(image.name)
        layout = make_layout(image.name, tensors_of(image), self.lanes)
        wire = find_mode(mode_of(image) if mode is None else mode).on_the_wire(self.workers)
        digest = digest_of(image.parameters)
        description = Description(layout, image.optimizer, wire, digest, rate_of(image))
        vectors, versions = vectors_of(image), versions_for(image, layout)
        first = FirstValues(self._shared, layout, self._number, vectors, versions)
        table = self._register(description, first, as_seconds(timeout))
        with self._shared.changed:
            table.has_seen(versions)
        return table

    def save(self, directory: str | Path, step: int | None = None, keep: int | None = None) -> Path:
        """Save all tables that this object has, as one checkpoint.

        Args:
            directory: a directory for the checkpoints of one job. A missing directory is made.
            step: the checkpoint's number; by default the greatest version of a shard.
            keep: the number of checkpoints that are kept; None keeps all.

        Returns the folder of the checkpoint. Raises CheckpointError (no table, a full disk ...) and
        the errors of `Table.pull`. After an error the earlier checkpoints are unchanged.
        """
        images = [image_of(table) for table in self._tables.values()]
        if not images:
            raise CheckpointError("there is no table to save: make one, or attach to one")
        os.makedirs(directory, exist_ok=True)
        number = step_of(images) if step is None else step
        return save(directory, number, images, job=self.job, keep=keep)

    def load(self, directory: str | Path, step: int | None = None) -> dict[str, Table]:
        """Restore all tables of the checkpoint of ``step``, by default of the last checkpoint.

        Returns the tables by name. Raises CheckpointError, and the errors of `restore`.
        """
        images = load_images(directory, step)
        return {image.name: self.restore(image) for image in images}

    def supervise(
        self,
        directory: str | Path,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int | None = 3,
    ) -> Supervisor:
        """Save all tables from time to time, in a thread, until this object is closed.

        One worker should do so, usually worker 0. A save reads the tables as a pull does: the other
        workers train on.

        Args:
            every_steps: versions from one save to the next.
            every_seconds: seconds from one save to the next.
            keep: the number of checkpoints that are kept; None keeps all.

        Raises CheckpointError if a number is out of range.
        """
        policy = SavePolicy(every_steps, every_seconds, keep)
        os.makedirs(directory, exist_ok=True)
        supervisor = Supervisor(
            Path(directory), policy, self.job, lambda: list(self._tables.values())
        )
        self._supervisors.append(supervisor)
        supervisor.start()
        return supervisor

    def attach(self, name: str, timeout: Timeout | None = None) -> Table:
        """Take part in a table. The reducers tell its tensors, optimizer and mode.

        Waits until another worker has made the table.

        Raises:
            RoundTimeoutError: no worker made the table in time. The text names the existing tables.
            ValueError: this parameter server has the table already.
        """
        self._shared.check_process()
        self._check_name(name)
        limit = as_seconds(timeout)
        deadline = time.monotonic() + (self._shared.timeout if limit is None else limit)
        while True:
            left = max(0.0, deadline - time.monotonic())
            by_name = self._list(max(left, _LIST_SECONDS))
            if name in by_name:
                _, description = describe(by_name[name])
                if _is_complete(description, by_name[name]):
                    return self._register(description, None, limit)
            self._pause(min(_LOOK_AGAIN, left), name, by_name)

    def tables(self, timeout: Timeout | None = None) -> list[TableInfo]:
        """All tables of the job and run, by name."""
        self._shared.check_process()
        by_name = self._list(as_seconds(timeout))
        return [describe(by_name[name])[0] for name in sorted(by_name)]

    def drop(self, name: str, timeout: Timeout | None = None) -> None:
        """Remove a table from the reducers. Its objects cannot be used any more, on any worker.

        Raises ValueError if there is no such table.
        """
        self._shared.check_process()
        if self.worker is None:
            raise ValueError(f"drop({name!r}): a reader may only pull")
        limit = as_seconds(timeout)
        notices = self._list(limit).get(name, [])
        was_here = self._forget(name)
        if not notices and not was_here:
            raise ValueError(f"drop({name!r}): the reducers have no such table")
        with self._shared.changed:
            self._shared.check()
            message = TableCall("drop", name=name)
            calls = [self._lanes.call(notice.partition, message) for notice in notices]
        try:
            self._wait_for(calls, limit, f"drop({name!r})")
        except ProtocolError:  # a lane does not know the table: perhaps the call was repeated
            if name in self._list(limit):
                raise

    def close(self, timeout: Timeout = _CLOSE_SECONDS) -> None:
        """Leave the tables, which stay on the reducers. May be called more than once.

        Waits for the receipts of pushes in flight, ``timeout`` seconds at most. A push without a
        receipt then fails with ClosedError, and its outcome is unknown.
        """
        if self._shared.is_forked:
            return
        while self._supervisors:
            self._supervisors.pop().stop()
        limit = as_seconds(timeout)
        with self._shared.changed:
            if self._shared.failure is None:
                with suppress(ReducerError):  # the pushes on their way fail below, or have failed
                    self._shared.wait_until(self._is_quiet, limit, lambda _: "")
            self._lanes.fail(
                ClosedError(
                    f"the parameter server of job {self.job!r} is closed; the outcome of a push "
                    "without a receipt is unknown",
                    reason="closed",
                )
            )
        self._disconnect()
        self._shared.callbacks.stop()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(_CLOSE_SECONDS if error is None else 0.0)

    # --- private --------------------------------------------------------------------------------

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= MAX_TABLE_NAME_BYTES:
            raise ValueError(
                f"table {name!r:.100}: expected a name of 1 to {MAX_TABLE_NAME_BYTES} bytes"
            )
        if name in self._tables:
            raise ValueError(
                f"table {name!r}: this parameter server has it already: use that object, or drop "
                "the table"
            )

    def _register(
        self, description: Description, first: FirstValues | None, timeout: float | None
    ) -> Table:
        self._shared.check_process()
        name = description.layout.name
        limit = self._shared.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        context = TableContext(self._shared, self._lanes, description.layout, self._number)
        state = TableState(context, description, first)
        table = Table(state, self._interrupts)
        with self._shared.changed:
            self._shared.check()
            self._check_name(name)
            self._tables[name] = table
            self._lanes.add(name, state)
            calls = [] if state.is_reader and first is None else state.register()
        try:
            self._wait_for(calls, limit, f"table {name!r}")
            self._wait_for_values(context, state, max(0.0, deadline - time.monotonic()))
        except BaseException:
            self._forget(name)
            raise
        return table

    def _wait_for_values(self, context: TableContext, state: TableState, limit: float) -> None:
        with self._shared.changed:
            context.wait_until(
                lambda: state.has_sent_values,
                limit,
                lambda _: (
                    f"table {context.layout.name!r}: the reducers did not take the first "
                    "values in time"
                ),
            )

    def _forget(self, name: str) -> bool:
        """Returns whether the table was here. Calls that wait for the table fail."""
        with self._shared.changed:
            table = self._tables.pop(name, None)
            state = self._lanes.remove(name)
            if state is not None:
                state.fail(ClosedError(f"table {name!r} was dropped", reason="dropped"))
        return table is not None

    def _list(self, timeout: float | None) -> dict[str, list[Notice]]:
        """The descriptions of each table by the lanes that have a part of it."""
        with self._shared.changed:
            self._shared.check()
            calls = [
                self._lanes.call(partition, TableCall("list"))
                for partition in range(self._lanes.partitions)
            ]
        found: dict[str, dict[int, Notice]] = {}
        for notice in self._wait_for(calls, timeout, "the list of tables"):
            if notice.name:
                found.setdefault(notice.name, {})[notice.partition] = notice
        return {name: list(by_partition.values()) for name, by_partition in found.items()}

    def _wait_for(self, calls: Sequence[Call], timeout: float | None, what: str) -> list[Notice]:
        def describe_missing(seconds: float) -> str:
            missing = sum(not call.done for call in calls)
            return f"{what}: {missing} of {len(calls)} lanes did not answer within {seconds:g} s"

        with self._shared.changed:
            self._shared.wait_until(
                lambda: all(call.done for call in calls), timeout, describe_missing
            )
        return [notice for call in calls for notice in call.check(what)]

    def _pause(self, seconds: float, name: str, found: Iterable[str]) -> None:
        """Wait before the next look for a table. Raises RoundTimeoutError if no time is left."""
        if seconds <= 0:
            known = ", ".join(map(repr, sorted(found))) or "none"
            raise RoundTimeoutError(
                f"attach({name!r}): no worker has made this table in time; tables of job "
                f"{self.job!r}: {known}",
                reason="timeout",
            )
        with self._shared.changed, suppress(RoundTimeoutError):
            self._shared.wait_until(lambda: False, seconds, lambda _: "")

    def _disconnect(self) -> None:
        self._lanes.close()
        if self._own_registry is not None:
            self._own_registry.close()

    def _is_quiet(self) -> bool:
        return all(table.is_quiet for table in self._tables.values())

    def _end_on_interrupt(self, interrupt: BaseException) -> None:
        with self._shared.changed:
            self._lanes.fail(
                ClosedError(
                    f"the parameter server of job {self.job!r} has ended: an interrupt "
                    f"({interrupt!r}) left a push or a call unfinished",
                    reason="interrupted",
                )
            )


def _is_complete(description: Description, notices: Sequence[Notice]) -> bool:
    """Whether all lanes with shards of a table have described it."""
    told = {notice.partition for notice in notices}
    parts = enumerate(description.layout.by_partition)
    return told >= {partition for partition, shards in parts if shards}
