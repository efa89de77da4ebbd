"""The way of the gradients out: from backward() into buckets, and from full buckets to the group.

backward() makes the gradients of the last layers first, and the next forward pass needs the first
layers first. Buckets are numbered as backward() fills them. With priorities, a bucket of a higher
number goes before the rest of all others, in pieces of the group's chunk size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from reducer_client.group import Group, wait_or_end
from reducer_client.torch.overlap.bucket import Bucket
from reducer_client.torch.overlap.forward_order import ForwardOrder
from reducer_client.torch.overlap.outgoing import Outgoing
from reducer_client.torch.tensors.partition import partition

Named = tuple[str, nn.Parameter]


class Gradients:
    """Takes the gradients of one step.

    Args:
        named: all trained parameters, with their names.
        outgoing: sends full buckets.

    Attributes:
        buckets: the buckets; empty before the first gradient.
        is_paused: whether backward() accumulates gradients and sends none.
    """

    def __init__(
        self,
        group: Group,
        prefix: str,
        named: Sequence[Named],
        order: ForwardOrder,
        bucket_bytes: int,
        outgoing: Outgoing,
    ) -> None:
        self._group = group
        self._prefix = prefix
        self._named = named
        self._order = order
        self._bucket_bytes = bucket_bytes
        self._outgoing = outgoing
        self._lock = threading.RLock()  # autograd has a thread for each device
        self.buckets: list[Bucket] = []
        self._homes: dict[int, tuple[Bucket, int]] = {}  # by place: bucket, and place in it
        self._taken: dict[int, tuple[torch.Tensor, int]] = {}  # by place: gradient, its version
        self._current = bytearray(b"\1" * len(named))  # by place: whether a forward pass waited
        self.is_paused = False
        self._hooks = [
            cast(Any, parameter).register_post_accumulate_grad_hook(self._hook(place))
            for place, (_, parameter) in enumerate(named)
        ]

    def remove(self) -> None:
        """Take no more gradients."""
        for hook in self._hooks:
            hook.remove()

    def needed_by(self, module: nn.Module) -> list[Bucket]:
        """The buckets with the parameters that a module needs, which it is about to use."""
        places = self._order.needs.get(module, ())
        for place in places:
            self._current[place] = 1
        return [self._homes[place][0] for place in places] if self._homes else []

    def all_current(self) -> None:
        """All updates are made: any module may use any parameter."""
        self._current = bytearray(b"\1" * len(self._named))

    def end_step(self) -> None:
        """End the step: the updates of all parameters may be made.

        Raises RuntimeError if a parameter has no gradient, or one that was changed after
        backward().
        """
        with self._lock:
            for place, (name, parameter) in enumerate(self._named):
                if place not in self._taken:
                    raise RuntimeError(_no_gradient(name, len(self._named) - len(self._taken)))
                gradient, version = self._taken[place]
                if parameter.grad is not gradient or gradient._version != version:
                    raise RuntimeError(_changed(name))
            self._taken.clear()
            self._current = bytearray(len(self._named))

    def _hook(self, place: int) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            if not self.is_paused:
                with self._lock:
                    self._take(place, parameter)

        return ready

    @torch.no_grad()
    def _take(self, place: int, parameter: torch.Tensor) -> None:
        name = self._named[place][0]
        if place in self._taken:
            raise RuntimeError(
                f"parameter {name!r}: a second backward() in one step. Call optimizer.step() after "
                "each backward(), and all but the last backward() of a step within no_sync()"
            )
        if not self._current[place]:
            raise RuntimeError(
                f"parameter {name!r}: the forward pass used it without a call of its module, so "
                "nothing waited for its update of the last step. Call the module, or call "
                "synchronize() of the Overlap before each forward pass"
            )
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            raise TypeError(
                f"parameter {name!r}: a sparse gradient: expected a dense one; make the embedding "
                "with sparse=False"
            )
        if not self._homes:
            self._plan()
        self._taken[place] = gradient, gradient._version
        bucket, at = self._homes[place]
        if bucket.fill(at, gradient):
            self._outgoing.add(bucket)

    def _plan(self) -> None:
        """Make the buckets, from the order of rank 0: all ranks must have the same ones."""
        order = np.array(self._order.learn(), np.int64)
        key = f"{self._prefix}/order"
        wait_or_end(self._group, lambda: self._group.broadcast(order, key=key, out=order))
        places = {id(parameter): place for place, (_, parameter) in enumerate(self._named)}
        parameters = [self._named[place][1] for place in order.tolist()]
        parts = partition(parameters, self._bucket_bytes, lambda parameter: parameter.dtype)
        for index, part in enumerate(parts):
            bucket = Bucket(index, [places[id(parameter)] for parameter in part], part)
            self.buckets.append(bucket)
            self._homes.update((place, (bucket, at)) for at, place in enumerate(bucket.places))
        self._outgoing.plan(self.buckets)


def _no_gradient(name: str, count: int) -> str:
    return (
        f"parameter {name!r} has no gradient of this step ({count} parameters in all): expected "
        "the last backward() before optimizer.step(), outside of no_sync(), to reach all. Give a "
        "parameter that takes no part requires_grad=False before the Overlap is made"
    )


def _changed(name: str) -> str:
    return (
        f"parameter {name!r}: its gradient was changed between backward() and optimizer.step(), "
        "when it was on its way to the reducers: Overlap allows no gradient clipping and no "
        "zero_grad() there. To clip, train with DistributedDataParallel and "
        "reducer_client.torch.attach instead"
    )
