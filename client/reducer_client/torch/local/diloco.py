"""``DiLoCo``: an optimizer of local steps, whose outer steps are common to all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch

from reducer_client.dtypes import WireDtype
from reducer_client.elastic import ElasticGroup
from reducer_client.group import Group
from reducer_client.outer.optimizer import OuterSGD
from reducer_client.torch.elastic.model_state import HasState
from reducer_client.torch.local import joining
from reducer_client.torch.local.local_steps import LocalSteps
from reducer_client.torch.local.parameters import (
    check_optimizer,
)
from reducer_client.work import Timeout

Closure = Callable[[], Any]

_OWN = "outer"  # the key of the outer part of a state_dict


class DiLoCo(torch.optim.Optimizer):
    """Local steps of an inner optimizer, and common steps of an outer optimizer, over slow links.

    Each rank trains by itself. Every ``every`` steps the ranks exchange how far they have come from
    the common *outer parameters*: the mean of ``outer - local`` is the pseudo-gradient of an outer
    optimizer, and each rank goes on from the new outer parameters. So a parameter is sent once in
    ``every`` steps, instead of its gradient in each step.

    This is an optimizer of torch: it runs the inner optimizer in its own `step`, and has the inner
    optimizer's parameter groups and state. LR schedulers may have either of the two. With a
    ``GradScaler``, a step that one rank skips counts as a step. Accumulate gradients as usual.
    Gradients may be sparse if the inner optimizer takes them.

    The outer parameters, and the state of the outer optimizer, have the same bits on all ranks. The
    state of the inner optimizer, and the buffers, stay with each rank.

    Args:
        model: a plain module; a module after ``fully_shard`` over the ranks of one site, where each
            rank's group has the ranks that have the same shard at the other sites; or a
            DistributedDataParallel over the ranks of one host. Trained parameters are float32,
            float64, bfloat16 or float16. The outer values are float32 (float64 for float64).
        optimizer: the inner optimizer, of all trained parameters of the model.
        group: the group of the ranks that train apart. With DistributedDataParallel, the first rank
            of each host gives a group, and the others None. For workers that come and go, see
            `join`.
        every: inner steps between two exchanges of a parameter.
        fragments: cut the model into this number of fragments, which take turns. The peak rate on
            the link falls by this factor.
        delay: inner steps that a rank makes while an exchange is under way. It merges the result
            after them. By default it waits at once.
        keep_local: the share of its own values that a rank keeps in a merge. With a delay, 0 throws
            the steps of the delay away, and 0.5 is usual.
        outer: the outer optimizer.
        wire_dtype: how float32 pseudo-gradients are sent, as for `Group.all_reduce`.
        average_buffers: make the floating-point buffers, such as the means of batch normalization,
            the mean of all ranks, with the first fragment.
        timeout: seconds or a timedelta for each wait. By default the group's ``step_timeout``.
        prefix: prefix of the keys. By default the number of this object within the group.

    The constructor is a common call: all ranks begin with the parameters of rank 0, which are sent
    only if the ranks differ.

    Attributes:
        optimizer: the inner optimizer.

    Raises:
        TypeError, ValueError: an argument is not as above, or does not fit the others.
        MismatchError: the ranks have different models or settings.
        ReducerError: another subclass, from the group.
    """

    _step_supports_amp_scaling = True  # a GradScaler calls `step` in each step
    _fixed: ClassVar[Mapping[str, Any]] = {}  # arguments of `LocalSteps` that a subclass sets
    found_inf: torch.Tensor  # a GradScaler sets both for the time of a step
    grad_scale: torch.Tensor | None

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        group: Group | None,
        *,
        every: int,
        fragments: int = 1,
        delay: int = 0,
        keep_local: float = 0.0,
        outer: OuterSGD | None = None,
        wire_dtype: WireDtype | None = None,
        average_buffers: bool = False,
        timeout: Timeout | None = None,
        prefix: str | None = None,
    ) -> None:
        check_optimizer(model, optimizer)
        if isinstance(group, ElasticGroup):
            raise TypeError("group: for workers that come and go, use DiLoCo.join")
        self._begin(
            optimizer,
            LocalSteps(
                model, group, every=every, fragments=fragments, delay=delay, keep_local=keep_local,
                outer=outer, wire_dtype=wire_dtype, average_buffers=average_buffers,
                timeout=timeout, prefix=prefix,
            ),
        )  # fmt: skip

    @classmethod
    def join(
        cls,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        addresses: str | list[str] | None = None,
        *,
        workers: int | None = None,
        extra: Mapping[str, HasState] | None = None,
        connect: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DiLoCo:
        """Join a job whose workers come and go, or found it with the others that start.

        A worker that is lost costs the others nothing but its own steps since the last exchange:
        the mean is over the workers that are left. A worker that joins takes over the parameters,
        buffers and states of a worker that is in. It comes in after an exchange, so it waits for up
        to twice the time between two exchanges. At the end call `finish`, and close `group`.

        Args:
            model: a plain module.
            workers: number of workers with which the job starts. By default ``REDUCER_WORKERS``.
            extra: further objects with ``state_dict`` and ``load_state_dict``, such as schedulers.
            connect: further options of `reducer_client.elastic.connect`.
            options: further arguments of the class. ``delay`` is shorter than ``every`` /
                ``fragments``, so that at times nothing is in flight.

        Raises TypeError, ValueError and ReducerErrors, as the class and
        `reducer_client.elastic.connect` do.
        """
        check_optimizer(model, optimizer)

        def make(group: Group) -> DiLoCo:
            made = cls.__new__(cls)
            made._begin(optimizer, LocalSteps(model, group, **cls._fixed, **options, is_equal=True))
            return made

        reach = {"addresses": addresses, "workers": workers, **(connect or {})}
        return joining.join(model, make, extra or {}, reach)

    def _begin(self, optimizer: torch.optim.Optimizer, local: LocalSteps) -> None:
        self.optimizer = optimizer
        self._local = local
        self._is_made = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._is_made = True
        self._share()

    @property
    def group(self) -> Group | None:
        """The group of the ranks that train apart."""
        return self._local.group

    @property
    def steps(self) -> int:
        """The inner steps that were made."""
        return self._local.steps

    @property
    def in_flight(self) -> list[int]:
        """The fragments whose exchange is under way."""
        return self._local.in_flight

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Closure) -> Any: ...
    def step(self, closure: Closure | None = None) -> Any:
        """Make a step of the inner optimizer, and the outer steps that are due.

        All ranks make the same number of steps. Returns the loss of the closure.

        Raises:
            MismatchError: the ranks have loaded different states.
            NumericError: a rank has NaN or Inf in its parameters. The outer parameters are
                unchanged.
            RuntimeError: the model has other trained parameters than in the beginning.
            ReducerError: another subclass. After a timeout the group has ended.
        """
        if self.param_groups is not self.optimizer.param_groups:  # it has loaded a state
            self._share()
        loss = self._inner_step(closure)
        self._local.step()
        return loss

    def finish(self) -> None:
        """Exchange all that was not exchanged yet. Then all ranks have the same parameters.

        Call this on all ranks after the last step, and before the model is evaluated or saved as
        the result. Raises the errors of `step`.
        """
        self._local.finish()

    def check(self) -> None:
        """Compare the outer parameters and the outer state of all ranks. All ranks call this.

        Raises MismatchError, which names the ranks that differ from rank 0, on all ranks.
        """
        self._local.check()

    def state_dict(self) -> dict[str, Any]:
        """The state of the inner optimizer, and under ``"outer"`` that of the outer optimizer.

        Save it with the model's state, on each rank: together they are a worker, and a run that
        goes on from them has the bits of an uninterrupted run. Waits for exchanges under way, whose
        results become a part of the state, and may raise the errors of `step`.
        """
        return {**self.optimizer.state_dict(), _OWN: self._local.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state. All ranks load a state of the same step.

        Load the model's state after the DiLoCo is made, which gives the model rank 0's parameters.
        Raises ValueError for the state of another optimizer or model.
        """
        if _OWN not in state_dict:
            raise ValueError(
                "state_dict: expected that of a DiLoCo, with the outer parameters; load the state "
                "of another optimizer into the inner optimizer, before the DiLoCo is made"
            )
        inner = {key: value for key, value in state_dict.items() if key != _OWN}
        self.optimizer.load_state_dict(inner)
        self._share()
        self._local.load_state_dict(state_dict[_OWN])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError: the parameters are fixed when the optimizer is made."""
        if self._is_made:
            raise ValueError(
                "add_param_group: the fragments are fixed when a DiLoCo is made: make it after the "
                "inner optimizer has all its parameters"
            )
        super().add_param_group(param_group)

    # --- private --------------------------------------------------------------------------------

    def _share(self) -> None:
        """One list of groups and one state for both optimizers."""
        self.param_groups = self.optimizer.param_groups
        self.state = self.optimizer.state

    def _inner_step(self, closure: Closure | None) -> Any:
        """The inner step, as a GradScaler makes it if there is one."""
        found = getattr(self, "found_inf", None)
        if found is None:
            return self.optimizer.step() if closure is None else self.optimizer.step(closure)
        scale = getattr(self, "grad_scale", None)
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            inner: Any = self.optimizer
            inner.found_inf, inner.grad_scale = found, scale
            try:
                return inner.step()
            finally:
                del inner.found_inf, inner.grad_scale
        if bool(found):
            return None
        if scale is not None:
            self._unscale(1.0 / float(scale))
        return self.optimizer.step()

    @torch.no_grad()
    def _unscale(self, factor: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
