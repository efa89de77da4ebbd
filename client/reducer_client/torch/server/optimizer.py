"""``ServerOptimizer``: an optimizer whose parameters and state are in a table on the reducers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch

from reducer.optimizers import Optimizer
from reducer_client.tables import Async, Counts, ParameterServer, Receipt, Table
from reducer_client.tables.modes import GivenMode
from reducer_client.tables.training import Training, make_table
from reducer_client.torch.server.ahead import Ahead
from reducer_client.torch.server.exchange import Vector, find_parameters, first_values

Closure = Callable[[], Any]

_OWN = "server"  # the key of this optimizer's own part of a state_dict


class ServerOptimizer(torch.optim.Optimizer):
    """A torch optimizer that pushes gradients to a table, and pulls the parameters from it.

    The reducers take the steps. The table has the parameters in float32 and the state of the
    optimizer; the model has a copy of the parameters, which each step replaces. Parameters may be
    float32, bfloat16 or float16. Parameters without ``requires_grad`` and buffers, such as the
    means of batch normalization, stay with each worker.

    ``param_groups[0]["lr"]`` is the table's learning rate. A change of it, for example by a
    scheduler, reaches the reducers before the next push. All workers should follow one schedule:
    the n-th change counts once, whichever worker makes it first.

    Args:
        model: a plain module. The constructor pulls the parameters into it.
        table: a table that has exactly the model's trained parameters, by name and shape:
            `create` makes one.

    Attributes:
        table: the table.
        skipped: steps without a push, because a ``GradScaler`` found gradients that overflowed.

    Raises:
        TypeError, ValueError: model and table do not fit.
        ReducerError: the parameters could not be pulled.

    Warns once if the table is known to diverge with usual learning rates.
    """

    found_inf: torch.Tensor  # a GradScaler sets both for the time of a step
    grad_scale: torch.Tensor | None
    _step_supports_amp_scaling = True  # a GradScaler then leaves the skipping of steps to `step`

    def __init__(self, model: torch.nn.Module, table: Table) -> None:
        by_name = {each.name: each for each in find_parameters(model)}
        shapes = {name: tuple(each.parameter.shape) for name, each in by_name.items()}
        self._training = Training(table, shapes, "parameters with requires_grad")
        self._parameters = [by_name[name] for name in table.shapes]
        self.table = table
        self.skipped = 0
        self._gradients = Vector(self._parameters)
        self._values = Vector(self._parameters)
        self._ahead: Ahead | None = None
        self._base: tuple[int, ...] | None = None
        self._is_made = False
        rate = self._training.rate
        super().__init__([each.parameter for each in self._parameters], {"lr": rate})
        self._is_made = True
        self.pull()

    @classmethod
    def create(
        cls,
        model: torch.nn.Module,
        ps: ParameterServer,
        *,
        optimizer: Optimizer,
        mode: GivenMode = "async",
        name: str = "model",
        initial: bool | None = None,
    ) -> ServerOptimizer:
        """Make a table of the model's parameters, and an optimizer for it.

        Args:
            optimizer, mode, name: as for `ParameterServer.table`.
            initial: whether this worker brings the first values. By default worker 0 does, and the
                others take over its values.
        """
        values = first_values(find_parameters(model))
        table = make_table(ps, name, values, optimizer=optimizer, mode=mode, initial=initial)
        return cls(model, table)

    @property
    def counts(self) -> Counts:
        """What became of this worker's pushes."""
        return self.table.counts

    @property
    def receipt(self) -> Receipt | None:
        """What became of the last push that has a receipt; None before."""
        return self._training.receipt

    @overload
    def step(self, closure: None = None, *, wait: bool = True) -> None: ...
    @overload
    def step(self, closure: Closure, *, wait: bool = True) -> Any: ...
    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, wait: bool = True) -> Any:
        """Push the gradients, and pull the newest parameters.

        With common steps, the pull waits until the step is over. A worker that came too late gets
        the parameters of the newest step, and `receipt` says that its gradient was dropped or
        carried. With SSP, each step ends a clock.

        Args:
            closure: computes the gradients, and returns the loss.
            wait: False, for the mode async: send the gradients while the model goes on, and take
                the parameters that have come meanwhile, if any. The gradients are then one push
                staler. Call `pull` before the parameters are saved or evaluated.

        Returns the loss of the closure.

        Raises:
            ValueError: a parameter has no gradient; or the mode allows no ``wait=False``.
            NumericError: a gradient has NaN or Inf. Nothing was sent.
            RoundTimeoutError: the table's workers or reducers were too slow.
            StateLostError: a reducer has lost the table.
        """
        if not wait and not isinstance(self.table.mode, Async):
            raise ValueError(
                f"table {self.table.name!r}, mode {self.table.mode}: step(wait=False) needs the "
                "mode async: in other modes a step waits for the other workers"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_groups(self.param_groups)
        is_finite, scale = self._amp()
        self._training.follow(float(self.param_groups[0]["lr"]))
        if is_finite:
            self._send(scale, wait)
        else:
            self.skipped += 1
        self._training.end_clock()
        if wait:
            self.pull()
        else:
            self._look_ahead()
        return loss

    def pull(self) -> None:
        """Put the table's newest parameters into the model. They have all pushes of this worker.

        Raises the error of a push that failed, or of the pull.
        """
        if self._ahead is not None:
            self._ahead.take(wait=True)
        self.table.pull(out=self._values.arrays)
        self._base = None  # the newest pull
        self._values.scatter()
        self._training.take_receipt()

    def state_dict(self) -> dict[str, Any]:
        """What is local: the learning rate and the number of its changes.

        Parameters and the state of the optimizer are in the table, and in its checkpoints.
        """
        return {**super().state_dict(), _OWN: {"rate_changes": self._training.rate_changes}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError for a state that is no `ServerOptimizer`'s."""
        if _OWN not in state_dict:
            raise ValueError(
                "state_dict: expected that of a ServerOptimizer; the state of another optimizer "
                "cannot be put into a table"
            )
        rest = {key: value for key, value in state_dict.items() if key != _OWN}
        self._check_groups(rest["param_groups"])
        super().load_state_dict(rest)
        rate = float(self.param_groups[0]["lr"])
        self._training.go_on(rate, int(state_dict[_OWN]["rate_changes"]))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError: the parameters of a table are fixed when it is made."""
        if self._is_made:
            raise ValueError(
                "add_param_group: the parameters of a table are fixed when it is made, and have "
                "one learning rate: make another table, with an optimizer of its own"
            )
        super().add_param_group(param_group)

    # --- private --------------------------------------------------------------------------------

    def _send(self, scale: float, wait: bool) -> None:
        if self._training.is_pushing and wait:  # a push that was given up may read its vector
            self._gradients = Vector(self._parameters)
        self._gradients.gather(scale)
        self._training.push(self._gradients.arrays, copy=not wait, base=self._base)

    def _look_ahead(self) -> None:
        if self._ahead is None:
            self._ahead = Ahead(self.table, self._parameters)
        if self._base is None:
            self._base = self.table.base
        self._base = self._ahead.take() or self._base
        self._ahead.start()

    def _amp(self) -> tuple[bool, float]:
        """Whether a GradScaler, if there is one, found finite gradients; the factor for them."""
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is None:
            return True, 1.0
        if self._training.in_steps:
            del self.found_inf, self.grad_scale  # the scaler does so only after a step
            raise ValueError(
                f"table {self.table.name!r}, mode {self.table.mode}: a GradScaler skips steps of "
                "one worker, for which the others would wait: train in bfloat16, which needs no "
                "scaler, or take the mode async"
            )
        return not bool(found), 1.0 if scale is None else 1.0 / float(scale)

    def _check_groups(self, groups: list[dict[str, Any]]) -> None:
        if len(groups) != 1:
            raise ValueError(
                f"{len(groups)} parameter groups: expected one, since a table has one learning "
                "rate; make a table and an optimizer for each group"
            )
