"""Steps of the first k workers for frameworks whose optimizers are on the workers.

The table has no optimizer: it keeps the last means of gradients.

Law: a worker applies every mean, in the order of the steps. So all workers that have applied
version v of the table have done the same, however fast they are. A worker is left out of at most
``bound`` steps running, so the table needs the means of ``bound`` + 1 steps: the last one whose set
had the worker, and those that left it out. That holds for a step of all workers, too: a worker that
was taken out for a moment comes back.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256

import numpy as np

from reducer.optimizers import NoOptimizer
from reducer.optimizers.none import MAX_HISTORY
from reducer_client.arrays import Array
from reducer_client.errors import MismatchError, StaleBaseError, StateLostError
from reducer_client.tables.modes import KOfN, WireMode
from reducer_client.tables.receipts import Push, Receipt
from reducer_client.tables.server import ParameterServer
from reducer_client.tables.table import Table

_ADVICE = (
    "load one checkpoint of the model and of its optimizer on all workers, and begin a new run "
    "(another run_id)"
)


class Means:
    """A worker's place in the sequence of a table's means.

    Args:
        table: a table with common steps and without an optimizer.
        version: the number of means that the worker has applied.
        newest: a version that the table has reached.

    Attributes:
        version: the number of means that the worker has applied.
        receipt: what became of the last gradient; None before.

    Raises ValueError if the table forgets a mean before each worker has it.
    """

    def __init__(self, table: Table, version: int, newest: int = 0) -> None:
        needed = _history(table.wire_mode)
        kept = table.optimizer.history if isinstance(table.optimizer, NoOptimizer) else 0
        if kept < needed:
            raise ValueError(
                f"table {table.name!r}, mode {table.mode}: {table.optimizer!r} keeps {kept} means, "
                f"and a worker may need the last {needed}: make the table with "
                f"NoOptimizer(history={needed})"
            )
        table.go_on_from(version)
        self.table = table
        self.version = version
        self.receipt: Receipt | None = None
        self._known = max(version, newest)  # the table has this version, or a gradient makes it
        self._push: Push | None = None
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether a gradient was given whose step this worker has not applied yet."""
        return self._is_open

    def give(self, gradients: Mapping[str, Array], weight: int = 1) -> None:
        """Give a gradient to the step behind ``version``. The arrays may change when `settle` has
        returned.

        Raises the errors of `Table.push`.
        """
        assert not self._is_open
        with _advised():
            self._push = self.table.push(gradients, copy=False, weight=weight)
        self._known = max(self._known, self.version + 1)
        self._is_open = True

    def settle(self) -> None:
        """Wait until the step of the gradient is over.

        Raises the errors of `Push.wait`. After RoundTimeoutError it may be called again.
        """
        if self._push is not None:
            with _advised():
                self.receipt = self._push.wait()
            self._push = None

    def fetch(self, out: Mapping[str, Array]) -> bool:
        """Fetch the mean after ``version`` into ``out``. False: the worker has all means that it
        knows of.

        Raises the errors of `Table.pull_version`.
        """
        if self.version >= max(self.table.step, self._known):
            self._is_open = False
            return False
        with _advised():
            self.table.pull_version(self.version + 1, out)
        return True

    def applied(self) -> None:
        """The worker has applied the mean of the last `fetch`."""
        self.version += 1
        self.table.go_on_from(self.version)


def history_for(mode: KOfN, workers: int | None) -> int:
    """How many means a table with this mode must keep.

    Raises ValueError for a mode that needs more of them than a table can keep.
    """
    needed = _history(mode.on_the_wire(workers))
    if needed > MAX_HISTORY:
        raise ValueError(
            f"{mode}: a worker may be left {mode.bound} steps behind, and a table keeps the means "
            f"of {MAX_HISTORY} steps: expected a bound of at most {MAX_HISTORY - 1}"
        )
    return needed


def join(
    ps: ParameterServer,
    name: str,
    values: Mapping[str, Array],
    *,
    mode: KOfN,
    version: int = 0,
    last_mean: str = "",
    takes_over: bool = True,
) -> tuple[Means, dict[str, Array] | None]:
    """Make the table of the means, or take part in it.

    Version 0 of the table, or the version of the checkpoint from which it begins, is the parameters
    of worker 0.

    Args:
        values: this worker's parameters, as float32.
        version: how many means this worker has applied.
        last_mean: the `digest` of the mean of that version, if the worker has applied it.
        takes_over: whether a worker that begins at version 0 may take over other parameters.

    Returns the worker's place, and the parameters that it must take over, if there are any.

    Raises:
        ValueError: the bound of the mode is too large.
        MismatchError: this worker does not have the parameters of the others.
        StateLostError: the table is too far ahead of this worker.
        ReducerError: as for `ParameterServer.table`.
    """
    optimizer = NoOptimizer(history_for(mode, ps.workers))
    is_there = any(info.name == name and info.ready for info in ps.tables())
    brings = ps.worker == 0 and not is_there
    with _advised():
        table = ps.table(
            name, values, optimizer=optimizer, mode=mode, initial=brings, version=version
        )
        taken, newest = _compare(ps, table, values, version, last_mean, takes_over)
    return Means(table, version, newest), taken


def digest(arrays: Mapping[str, Array]) -> str:
    """A fingerprint of a mean: SHA-256 in hexadecimal."""
    found = sha256()
    for name in sorted(arrays):
        found.update(np.ascontiguousarray(arrays[name], "<f4").data)
    return found.hexdigest()


def _compare(
    ps: ParameterServer,
    table: Table,
    values: Mapping[str, Array],
    version: int,
    last_mean: str,
    takes_over: bool,
) -> tuple[dict[str, Array] | None, int]:
    """Compare this worker with the table's value of its version.

    Returns what it must take over, and the table's version.
    """
    who = f"worker {ps.worker} of table {table.name!r}"
    newest = min(table.pull_arrays([table.layout.empty_vector()]))
    if version > newest:
        raise MismatchError(
            f"{who} has applied {version} means, and the table has {newest}: {_ADVICE}"
        )
    found = table.pull_version(version)
    own = {name: np.asarray(value, np.float32) for name, value in values.items()}
    if digest(found) in (digest(own), last_mean):
        return None, newest
    if version == 0 and takes_over:
        return found, newest
    text = f"{who} has other parameters at version {version} than the other workers: "
    if version == 0:
        text += "call start() before the first gradient is computed, or use one seed on all workers"
    raise MismatchError(text if version == 0 else text + _ADVICE)


def _history(wire: WireMode) -> int:
    """How many means a worker may be short of."""
    return wire.bound + 1


@contextmanager
def _advised() -> Generator[None]:
    """Errors of tables that are lost tell what a worker with an optimizer of its own can do."""
    try:
        yield
    except (StateLostError, StaleBaseError) as error:
        advice = _ADVICE
        if error.reason == "gone":
            advice = (
                "this worker has missed means, because it was without a connection for too long "
                f"or has come late. Load the state of a worker that goes on, or {_ADVICE}"
            )
        raise type(error)(f"{error}; {advice}", key=error.key, reason=error.reason) from error
