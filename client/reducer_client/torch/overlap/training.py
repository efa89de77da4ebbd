"""``Overlap``: data-parallel training in which the next forward pass waits for each module only."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import nn

from reducer_client.dtypes import WireDtype
from reducer_client.group import Group
from reducer_client.torch.hook.ddp import ReductionState, next_number
from reducer_client.torch.overlap import checks
from reducer_client.torch.overlap.forward_order import ForwardOrder
from reducer_client.torch.overlap.gradients import Gradients
from reducer_client.torch.overlap.outgoing import Outgoing
from reducer_client.torch.overlap.partial_steps import PartialSteps
from reducer_client.torch.overlap.start import share
from reducer_client.torch.overlap.updates import Updates
from reducer_client.work import Timeout


class Overlap:
    """Trains a model in steps that overlap: the loop of the program stays as it is.

        with reducer_client.torch.Overlap(model, optimizer, group):
            for inputs, targets in batches:
                loss = loss_of(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    backward() sends each bucket of gradients as soon as it is full. ``optimizer.step()`` waits for
    nothing: it notes the hyperparameters, such as the learning rate. Each parameter is updated when
    the mean of its bucket has arrived, and a module's next forward pass waits only for the
    parameters of this module. Parameters and losses have the bits of the same loop with
    DistributedDataParallel and `attach`.

    The constructor gives all ranks the parameters and buffers of rank 0. Later, buffers stay with
    each worker. It replaces ``optimizer.step`` until `close`. The following wait for all updates:
    `synchronize`, the end of a ``with`` block, ``state_dict()`` and ``load_state_dict()`` of model
    and optimizer, and the forward pass of a model in eval mode. Call `synchronize` before you read
    or change parameters otherwise, for example for a moving average of them.

    After backward(), ``parameter.grad`` is the gradient of this rank alone.

    Args:
        model: a plain module. Every parameter with ``requires_grad`` gets a gradient in every step.
        optimizer: an optimizer of torch that updates each parameter by itself; it has all trained
            parameters of the model, and no others.
        group: the joined group that sums the gradients. All ranks make their Overlaps in the same
            order.
        bucket_cap_mb: maximum size of a bucket of gradients in MiB.
        prioritize: send the gradients that the next forward pass needs first before others, as far
            as backward() has not sent them already.
        wire_dtype: the dtype in which float32 gradients are sent, as for `Group.all_reduce`, such
            as ``"bfloat16"``.
        error_feedback: with a quantised ``wire_dtype``, add what rounding keeps back to the next
            gradients of the same parameter. Call `synchronize` and save ``state.state_dict()`` of
            every rank in each checkpoint. The residuals take as much memory, on the host, as the
            gradients.
        timeout: timeout of a bucket, in seconds or a timedelta, as for `attach`.
        prefix: prefix of the keys of the buckets, as for `attach`.
        per_parameter: says that an optimizer that is not torch's own updates each parameter from
            its own gradient and state alone.

    Attributes:
        state: the numbers of bytes, and the cost of ``wire_dtype``; see `ReductionState`.

    Raises:
        TypeError, ValueError: the model or the optimizer cannot be trained so.
        ReducerError: the group has ended.

    A forward pass, ``optimizer.step()``, backward() and everything that waits for updates raise
    PeerLostError or another ReducerError when a worker is lost or late. The parameters are then of
    different steps, and every later call raises the same error: load a checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        group: Group,
        *,
        bucket_cap_mb: float = 1,
        prioritize: bool = True,
        wire_dtype: WireDtype | None = None,
        error_feedback: bool = False,
        timeout: Timeout | None = None,
        prefix: str | None = None,
        per_parameter: bool = False,
    ) -> None:
        if bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb={bucket_cap_mb}: expected more than 0")
        named = checks.find_parameters(model)
        checks.check_optimizer(optimizer, named, per_parameter)
        if getattr(optimizer.step, "_is_overlap", False):
            raise ValueError("optimizer: another Overlap has it: expected one for each optimizer")
        self._model = model
        self._optimizer = optimizer
        self._memory = [(name, p, p.data_ptr()) for name, p in named]
        prefix = prefix or f"overlap{next_number(group)}"
        self.state = ReductionState(
            group,
            wire_dtype=wire_dtype,
            error_feedback=model if error_feedback else None,
            prioritize=prioritize,
            timeout=timeout,
            prefix=prefix,
        )
        share(group, model, prefix)
        self._order = ForwardOrder(model, [parameter for _, parameter in named])
        self._steps = PartialSteps(optimizer)
        self._updates = Updates(self.state, self._steps)
        outgoing = Outgoing(
            group,
            self.state,
            prioritize,
            self._updates.arrive,
            self._updates.fail,
        )
        self._gradients = Gradients(
            group, prefix, named, self._order, _bytes(bucket_cap_mb), outgoing
        )
        self._hooks = self._watch()
        own = {"step": MethodType(self._step_function(), optimizer), **checks.SEES_SCALER}
        self._replaced = {name: optimizer.__dict__[name] for name in own if name in vars(optimizer)}
        optimizer.__dict__.update(own)

    def __repr__(self) -> str:
        kind = type(self._optimizer).__name__
        return f"<Overlap of {kind} buckets={len(self._gradients.buckets)}>"

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Context in which backward() accumulates gradients, and does not send them."""
        self._gradients.is_paused = True
        try:
            yield
        finally:
            self._gradients.is_paused = False

    def synchronize(self) -> None:
        """Wait until all parameters have the updates of the last ``optimizer.step()``.

        Raises ReducerErrors, such as PeerLostError.
        """
        self._updates.finish()
        self._gradients.all_current()

    def close(self) -> None:
        """`synchronize`, and give the optimizer its own ``step`` back, in any case."""
        try:
            self.synchronize()
        finally:
            self._release()

    def __enter__(self) -> Overlap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._release()

    # --- private --------------------------------------------------------------------------------

    def _release(self) -> None:
        self._gradients.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if getattr(self._optimizer.step, "_is_overlap", False):
            for name in ("step", *checks.SEES_SCALER):
                del self._optimizer.__dict__[name]
            self._optimizer.__dict__.update(self._replaced)

    def _step_function(self) -> Callable[..., None]:
        def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> None:
            if closure is not None:
                raise TypeError(
                    "optimizer.step(closure): an Overlap takes no closure: call backward() before "
                    "step()"
                )
            optimizer._opt_called = True  # schedulers of the learning rate look for both
            self._end_step()

        marked: Any = step
        marked._wrapped_by_lr_sched = True
        marked._is_overlap = True
        return step

    def _end_step(self) -> None:
        self._updates.check()
        checks.check_scaler(self._optimizer)
        checks.check_groups(self._optimizer)
        if not self._steps.is_complete:
            raise ValueError(
                "optimizer: its parameters have changed: close the Overlap before add_param_group, "
                "and make another one"
            )
        for name, parameter, memory in self._memory:
            if parameter.data_ptr() != memory:
                raise ValueError(
                    f"parameter {name!r} has other memory than when the Overlap was made: make the "
                    "Overlap after model.to(...) and the like"
                )
        self._gradients.end_step()
        self._updates.release(self._gradients.buckets, self._steps.hyperparameters())

    def _before_forward(self, module: nn.Module, *_: Any) -> None:
        is_training = self._model.training and (module.training or torch.is_grad_enabled())
        if not is_training:  # torch's fast paths use the parameters of modules they do not call
            self.synchronize()
            return
        self._order.call(module)
        self._updates.wait(self._gradients.needed_by(module))

    def _watch(self) -> list[Any]:
        def wait(*_: Any) -> None:
            self.synchronize()

        hooks: list[Any] = []
        module: Any  # torch leaves two of the methods untyped
        for module in self._model.modules():
            hooks += [
                module.register_forward_pre_hook(self._before_forward, prepend=True),
                module.register_state_dict_pre_hook(wait),
                module.register_load_state_dict_pre_hook(wait),
            ]
        return [
            *hooks,
            self._optimizer.register_state_dict_pre_hook(wait),
            self._optimizer.register_load_state_dict_pre_hook(wait),
        ]


def _bytes(mebibytes: float) -> int:
    return int(mebibytes * (1 << 20))
