"""The training steps of a model whose parameters are in a table: what all frameworks share.

The ``ServerOptimizer`` of each framework has one `Training`. Arrays come in and go out as NumPy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from reducer.optimizers import NoOptimizer, Optimizer
from reducer_client.arrays import Array
from reducer_client.tables.advice import find_advice
from reducer_client.tables.modes import SSP, GivenMode, KOfN, Sync
from reducer_client.tables.receipts import Push, Receipt
from reducer_client.tables.server import ParameterServer
from reducer_client.tables.table import Table

_MOST_NAMED = 5  # tensors that an error names


class Training:
    """A worker's steps over a table.

    Args:
        table: the table.
        shapes: the shapes of the model's trained parameters, by name.
        kind: what the framework calls these parameters, for errors.

    Attributes:
        rate: the learning rate that the reducers were told last.
        rate_changes: how many times this worker's schedule has changed it.
        receipt: what became of the last push that has a receipt; None before.
        in_steps: whether all workers take common steps.

    Raises ValueError if the table has other tensors, or no optimizer. Warns if the table is known
    to diverge with usual learning rates.
    """

    def __init__(self, table: Table, shapes: Mapping[str, tuple[int, ...]], kind: str) -> None:
        _check_shapes(table, shapes, kind)
        self.table = table
        self.rate = _rate_of(table)
        self.rate_changes = 0
        self.receipt: Receipt | None = None
        self.in_steps = isinstance(table.mode, Sync | KOfN)
        self._push: Push | None = None
        if (advice := find_advice(table.optimizer, table.mode)) is not None:
            # The caller of the optimizer's constructor.
            warnings.warn(f"table {table.name!r}: {advice}", stacklevel=3)

    @property
    def is_pushing(self) -> bool:
        """Whether a push may still read the arrays that it was given without a copy."""
        self._take_receipt(wait=False)
        return self._push is not None

    def push(
        self,
        gradients: Mapping[str, Array],
        copy: bool = True,
        base: Sequence[int] | None = None,
    ) -> None:
        """Send a gradient, as `Table.push` does."""
        self._take_receipt(wait=False)
        self._push = self.table.push(gradients, copy=copy, base=base)

    def end_clock(self) -> None:
        """With SSP, each step ends a clock. Holds for all pushes before it."""
        if isinstance(self.table.mode, SSP):
            self.table.clock()

    def take_receipt(self) -> None:
        """Wait for the receipt of the last push. Raises the error of a push that failed."""
        self._take_receipt(wait=True)

    def follow(self, rate: float) -> None:
        """Tell the reducers the learning rate of this worker's schedule, if it has changed."""
        if rate != self.rate:
            self.table.set_lr(rate, number=self.rate_changes + 1)
            self.rate_changes += 1
            self.rate = rate

    def go_on(self, rate: float, changes: int) -> None:
        """Go on with a schedule that has made so many changes before."""
        self.rate_changes = changes
        if changes:
            # Reducers that know this change ignore it. A table that was made again does not.
            self.rate = rate
            self.table.set_lr(rate, number=changes)

    def _take_receipt(self, wait: bool) -> None:
        if self._push is None or not (wait or self._push.done):
            return
        push = self._push
        self.receipt = push.wait()
        self._push = None


def make_table(
    ps: ParameterServer,
    name: str,
    values: Mapping[str, object],
    *,
    optimizer: Optimizer,
    mode: GivenMode,
    initial: bool | None,
) -> Table:
    """Make a table of a model's parameters; by default worker 0 brings the first values."""
    brings = ps.worker == 0 if initial is None else initial
    return ps.table(name, values, optimizer=optimizer, mode=mode, initial=brings)


def _check_shapes(table: Table, shapes: Mapping[str, tuple[int, ...]], kind: str) -> None:
    if shapes == table.shapes:
        return
    differ = [
        f"{name!r}: {shapes.get(name, 'missing')} in the model, "
        f"{table.shapes.get(name, 'missing')} in the table"
        for name in {**shapes, **table.shapes}
        if shapes.get(name) != table.shapes.get(name)
    ]
    unnamed = len(differ) - _MOST_NAMED
    more = f"; and {unnamed} more" if unnamed > 0 else ""
    raise ValueError(
        f"table {table.name!r}: expected exactly the model's {kind}; "
        f"{'; '.join(differ[:_MOST_NAMED])}{more}"
    )


def _rate_of(table: Table) -> float:
    rate = table.lr
    if rate is None or isinstance(table.optimizer, NoOptimizer):
        raise ValueError(
            f"table {table.name!r} has no optimizer: it holds means of gradients, not parameters; "
            "make it with one of reducer.optimizers"
        )
    return rate
