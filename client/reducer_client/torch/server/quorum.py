"""``QuorumOptimizer``: an optimizer of torch that applies the means of the first k workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from reducer_client.arrays import Array
from reducer_client.tables import Counts, KOfN, ParameterServer, Receipt, Table
from reducer_client.tables.means import Means, digest, history_for, join
from reducer_client.tables.modes import MOST_LEFT_OUT, Late
from reducer_client.torch.server.exchange import (
    Model,
    Named,
    Vector,
    find_parameters,
    first_values,
)
from reducer_client.torch.tensors.trained import check_optimizer

Closure = Callable[[], Any]

_OWN = ("optimizer", "scheduler", "version", "last_mean")  # the keys of a state


class QuorumOptimizer:
    """An optimizer of torch in common steps of the first k workers, with "backup workers".

    Each worker has the whole optimizer and applies every mean of gradients in the same order. So
    all workers that have applied ``version`` means have the same bits of parameters and state,
    however fast they are. A worker that comes too late for a step is told so, applies the means
    that it has missed, and goes on. The reducers keep the last means.

    The bits are equal on machines that compute the optimizer alike: the same version of torch, the
    same kind of device. Buffers, such as the means of batch normalization, stay with each worker.

    Args:
        optimizer: an optimizer of the model's trained parameters. Its ``step`` needs no closure.
        model: a plain module, or its ``named_parameters()``. Parameters with ``requires_grad`` are
            float32, bfloat16 or float16. Means are float32, and are rounded to the dtype of the
            parameter.
        ps: the parameter server, which knows the number of workers.
        k: how many workers a step waits for.
        late: what becomes of a gradient that comes too late: ``"drop"``, or ``"carry"``: the
            worker adds it to its next one, which then counts for both.
        bound: how many steps running a worker may be left out, 7 at most. Then the step waits for
            it. The reducers keep ``bound`` + 1 means, of 4 bytes for each parameter.
        scheduler: a schedule of the optimizer's learning rate. It takes a step with each mean, so
            do not call its ``step``.
        name: the name of the table.

    Attributes:
        optimizer, scheduler: as given.

    Raises:
        TypeError, ValueError: an argument is not as above, or does not fit the others.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Model,
        ps: ParameterServer,
        k: int,
        *,
        late: Late = "drop",
        bound: int = MOST_LEFT_OUT,
        scheduler: LRScheduler | None = None,
        name: str = "gradients",
    ) -> None:
        self._parameters = find_parameters(model)
        _check_optimizer(optimizer, self._parameters)
        _check_scheduler(scheduler, optimizer)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._mode = KOfN(k, late, bound)
        history_for(self._mode, ps.workers)  # raises
        self._ps = ps
        self._name = name
        self._means: Means | None = None
        self._start = (0, "")  # the version, and the digest of its mean
        self._vector = Vector(self._parameters)  # a gradient, then means
        self._has_mean = False  # whether the vector is the mean of `version`

    def __repr__(self) -> str:
        kind = type(self.optimizer).__name__
        return f"<QuorumOptimizer of {kind} {self._mode} version={self.version}>"

    @property
    def version(self) -> int:
        """The number of means that this worker has applied."""
        return self._start[0] if self._means is None else self._means.version

    @property
    def receipt(self) -> Receipt | None:
        """What became of this worker's last gradient: applied, dropped or carried."""
        return None if self._means is None else self._means.receipt

    @property
    def counts(self) -> Counts:
        """What became of this worker's gradients."""
        return self.table.counts

    @property
    def table(self) -> Table:
        """The table of the means. Raises ValueError before `start`."""
        if self._means is None:
            raise ValueError(f"table {self._name!r}: there is none before start()")
        return self._means.table

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer."""
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def start(self) -> None:
        """Begin to take part, and apply all means up to the newest. The first `step` does so, too.

        Call it before the first gradient is computed, and after `load_state_dict`: workers that
        begin at version 0 take over the parameters of worker 0. The first step takes nothing over,
        and its gradient is late if the others are ahead. The first worker waits until worker 0 has
        come.

        Raises:
            ValueError: this worker takes part already.
            MismatchError: this worker does not have the parameters of the others, because it has
                loaded another checkpoint, or another mode.
            StateLostError: this worker is too far behind the others.
            ReducerError: the table cannot be made.
        """
        if self._means is not None:
            raise ValueError(f"table {self._name!r}: this worker takes part already")
        self._catch_up(self._join(takes_over=True))

    @overload
    def step(self, closure: None = None, *, weight: int = 1) -> None: ...
    @overload
    def step(self, closure: Closure, *, weight: int = 1) -> Any: ...
    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, weight: int = 1) -> Any:
        """Give the gradients to the open step, wait for its end, and apply all means up to the
        newest.

        ``receipt`` then tells whether the step has this worker's gradient, and the gradients of the
        parameters are the last mean.

        Args:
            closure: computes the gradients, and returns the loss.
            weight: how much the gradient counts in the mean, for example the number of samples of
                the batch, from 1 to 65,536. The gradient is the mean of the batch.

        Returns the loss of the closure.

        Raises:
            ValueError, TypeError: a parameter has no gradient, or a sparse one. Nothing was sent.
            NumericError: a gradient has NaN or Inf. Nothing was sent.
            RoundTimeoutError: workers or reducers were too slow. The gradient is on its way: call
                `step` again, which gives no other gradient.
            StateLostError: the reducers have lost the means, or this worker was away for so long
                that it has missed some. Load a checkpoint on all workers.
            ReducerError: the parameter server has ended.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        means = self._means or self._join(takes_over=False)
        if not means.is_open:
            self._has_mean = False  # from here on, though the gradient may be refused
            self._vector.gather(weight)
            means.give(self._vector.arrays, weight)
        means.settle()
        self._catch_up(means)
        return loss

    def _catch_up(self, means: Means) -> None:
        """Apply all means up to the newest."""
        has_mean, self._has_mean = self._has_mean, False
        while means.fetch(self._vector.arrays):
            self._vector.scatter_gradients()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            means.applied()
            has_mean = True
        self._has_mean = has_mean

    def state_dict(self) -> dict[str, Any]:
        """The states of the optimizer and the scheduler, and the version.

        Save it with the model's: together they are a worker. The states of all workers that have
        the same version are equal. Raises ValueError after a step that was not finished. After a
        refused gradient it fetches the last mean again, and may raise the errors of `step`.
        """
        version, last_mean = self._start
        if self._means is not None:
            if self._means.is_open:
                raise ValueError(
                    f"table {self._name!r}: the last step was not finished: call step() again"
                )
            if self._means.version > version:
                version, last_mean = self._means.version, digest(self._last_mean(self._means))
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        values = (self.optimizer.state_dict(), scheduler, version, last_mean)
        return dict(zip(_OWN, values, strict=True))

    def _last_mean(self, means: Means) -> dict[str, Array]:
        """The mean of the worker's version, fetched anew if a refused gradient is in its place."""
        if not self._has_mean:
            means.table.pull_version(means.version, self._vector.arrays)
            self._has_mean = True
        return self._vector.arrays

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, and from the model of the same moment.

        All workers of a new run load the same state. A worker that was started again loads the
        state of a worker that goes on.

        Raises ValueError if this worker takes part already, and for the state of another optimizer.
        """
        if self._means is not None:
            raise ValueError(
                f"table {self._name!r}: this worker takes part already: load a state before start()"
            )
        if not state_dict.keys() >= set(_OWN):
            raise ValueError(
                f"state_dict: expected the state of a QuorumOptimizer, with {', '.join(_OWN)}"
            )
        self.optimizer.load_state_dict(state_dict["optimizer"])
        if self.scheduler is not None and state_dict["scheduler"] is not None:
            self.scheduler.load_state_dict(state_dict["scheduler"])
        self._start = int(state_dict["version"]), str(state_dict["last_mean"])

    def _join(self, takes_over: bool) -> Means:
        version, last_mean = self._start
        means, taken = join(
            self._ps,
            self._name,
            first_values(self._parameters),
            mode=self._mode,
            version=version,
            last_mean=last_mean,
            takes_over=takes_over,
        )
        if taken is not None:
            for name, array in self._vector.arrays.items():
                array[...] = taken[name]
            self._vector.scatter()
        self._means = means
        return means


def _check_optimizer(optimizer: torch.optim.Optimizer, parameters: list[Named]) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer: LBFGS computes the loss several times in a step, and the workers exchange "
            "one gradient: expected an optimizer whose step needs no closure"
        )
    trained = ((each.name, each.parameter) for each in parameters)
    check_optimizer(optimizer, trained, "the workers would have different values of them")


def _check_scheduler(scheduler: object, optimizer: torch.optim.Optimizer) -> None:
    if scheduler is None:
        return
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            f"scheduler: expected an LRScheduler, got {type(scheduler).__name__}: its step must "
            "depend on nothing but the number of means"
        )
    if scheduler.optimizer is not optimizer:
        raise ValueError("scheduler: it is of another optimizer")
