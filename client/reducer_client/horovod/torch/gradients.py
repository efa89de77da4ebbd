"""When an optimizer's gradients are sent, and where the reduced gradients are stored.

``gradient_layouts.py`` decides whether a gradient is sent as a dense or as a sparse tensor.

Law: a gradient is sent once in a step, when the last of its backward passes has added to it, or in
``finish`` if none has: another rank may have one. From then to ``finish`` its memory belongs to the
reduction.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from reducer_client.horovod import arrays
from reducer_client.horovod.context import current
from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.horovod.handles import Handle
from reducer_client.horovod.process_sets import ProcessSet
from reducer_client.horovod.requests import Average, ReduceOp
from reducer_client.horovod.torch.asynchronous import start, start_all
from reducer_client.horovod.torch.compression import Compressor
from reducer_client.horovod.torch.gradient_layouts import Layouts, laid_out
from reducer_client.horovod.torch.sparse import sparse_allreduce_async

Bundle = tuple[torch.Tensor, ...]
Finish = Callable[[], None]  # waits for a reduction and stores the gradient


@dataclass(frozen=True)
class ReductionOptions:
    """How gradients are reduced; the arguments of ``DistributedOptimizer``."""

    compression: type[Compressor]
    op: ReduceOp
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def factors(self) -> dict[str, float]:
        """The arguments of `allreduce_async` that scale a gradient before and after the sum."""
        if self.op != Average:
            return {}
        before, after = 1.0 / self.predivide_factor, self.predivide_factor
        return {"prescale_factor": before, "postscale_factor": after}


class Gradients:
    """Sends the gradients of parameters as backward passes make them.

    Args:
        names: the name of each parameter; equal on all ranks.
        bundles: the ``groups`` of `DistributedOptimizer`: parameters whose gradients are reduced as
            one. Every parameter is in one bundle.
        passes: how many backward passes add to a gradient before it is sent.
    """

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        bundles: Sequence[Bundle],
        passes: int,
        options: ReductionOptions,
    ) -> None:
        self.passes = passes
        self._names = names
        self._options = options
        self._layouts = Layouts(names, options.process_set)
        ranks = options.process_set
        self._takes_part = ranks.included() and len(ranks.ranks) > 1
        self._bundles: dict[torch.Tensor, Bundle] = {}
        self._done: dict[torch.Tensor, int] = {}  # passes since the last step
        self._pending: dict[Bundle, list[Finish]] = {}
        self._hooks: dict[torch.Tensor, RemovableHandle] = {}
        self._end = weakref.finalize(self, _remove, self._hooks)
        self.add(bundles)

    @property
    def under_way(self) -> bool:
        """Whether there was a backward pass since the last ``finish``."""
        return bool(self._done or self._pending)

    def add(self, bundles: Sequence[Bundle]) -> None:
        """Add bundles of parameters, which must be in ``names`` already."""
        if self._takes_part:
            self._bundles.update((p, bundle) for bundle in bundles for p in bundle)
            self._hook_trainable()

    def finish(self) -> None:
        """Send what was not sent yet, and wait until every gradient is the reduced one.

        Raises the first HorovodInternalError of a gradient; then no gradient may be applied.
        """
        if not self._takes_part:
            self.forget()
            return
        with self.end_on_interrupt():
            self._finish()

    def end_on_interrupt(self) -> AbstractContextManager[None]:
        """A block whose interrupt ends Horovod on this rank, if the rank sends gradients."""
        return current().end_on_interrupt if self._takes_part else nullcontext()

    def _finish(self) -> None:
        try:
            if not self._options.sparse_as_dense:
                self._layouts.agree(p for p in self._bundles if p.requires_grad)
            for bundle in dict.fromkeys(self._bundles.values()):
                if bundle not in self._pending:
                    self._start(bundle)
            errors = [_error_of(finish) for finish in chain.from_iterable(self._pending.values())]
        finally:
            self.forget()
        self._hook_trainable()
        for error in filter(None, errors):
            raise error

    def forget(self) -> None:
        """Begin a step as if nothing had been sent."""
        self._done.clear()
        self._pending.clear()

    def _hook_trainable(self) -> None:
        """Hook the parameters that are trained now.

        torch refuses hooks on frozen parameters. They may be unfrozen before a later step.
        """
        accumulated = weakref.WeakMethod(self._accumulated)

        def hook(parameter: torch.Tensor) -> None:
            if (call := accumulated()) is not None:
                call(parameter)

        for parameter in self._bundles:
            if parameter.requires_grad and parameter not in self._hooks:
                register: Any = parameter.register_post_accumulate_grad_hook  # has no annotations
                self._hooks[parameter] = register(hook)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        done = self._done.get(parameter, 0)
        if done >= self.passes:
            raise AssertionError(
                f"gradient of {self._names[parameter]!r}: {done + 1} backward passes before "
                f"step(), expected {self.passes}: to add up gradients of more, give "
                "DistributedOptimizer a larger backward_passes_per_step"
            )
        self._done[parameter] = done + 1
        bundle = self._bundles[parameter]
        if done + 1 == self.passes and all(
            self._done.get(p) == self.passes for p in _trainable(bundle)
        ):
            self._start(bundle)

    def _start(self, bundle: Bundle) -> None:
        members = _trainable(bundle)
        gathered = [p for p in members if self._lay_out(p)]
        summed = [p for p in members if p not in set(gathered)]
        self._pending[bundle] = [self._gather(p) for p in gathered]
        for dtype in dict.fromkeys(_grad(p).dtype for p in summed):
            alike = [p for p in summed if _grad(p).dtype == dtype]
            self._pending[bundle].append(self._sum(alike, as_one=len(bundle) > 1))

    def _lay_out(self, parameter: torch.Tensor) -> bool:
        """Give the parameter a gradient in the agreed layout; returns whether that is sparse."""
        dense = self._options.sparse_as_dense
        axes = 0 if dense else self._layouts.sparse_axes(parameter)
        parameter.grad = laid_out(parameter, axes)
        return axes > 0

    def _gather(self, parameter: torch.Tensor) -> Finish:
        options = self._options
        name = self._names[parameter]
        finish = sparse_allreduce_async(_grad(parameter), name, options.op, options.process_set)
        return lambda: _store(parameter, finish())

    def _sum(self, parameters: list[torch.Tensor], as_one: bool) -> Finish:
        options = self._options
        grads = [_grad(p).to_dense() if _grad(p).is_sparse else _grad(p) for p in parameters]
        sent, contexts = zip(*(options.compression.compress(grad) for grad in grads), strict=True)
        arguments: dict[str, Any] = {
            "op": options.op,
            "name": self._names[parameters[0]],
            "process_set": options.process_set,
            "wire_dtype": getattr(options.compression, "wire_dtype", None),
            "in_place": True,
            **options.factors,
        }
        handle: Handle[Any]
        if as_one:
            handle = start_all(arrays.grouped_allreduce_async, list(sent), **arguments)
        else:
            handle = start(arrays.allreduce_async, sent[0], **arguments)

        def finish() -> None:
            found: Any = handle.wait()
            results = found if as_one else [found]
            for parameter, result, context in zip(parameters, results, contexts, strict=True):
                _store(parameter, options.compression.decompress(result, context))

        return finish


def _error_of(finish: Finish) -> HorovodInternalError | None:
    """Wait, and return the error. After a failure, too, nothing may write to gradients later."""
    try:
        finish()
    except HorovodInternalError as error:
        return error
    return None


def _trainable(bundle: Bundle) -> list[torch.Tensor]:
    """The parameters that are not frozen; the same ones on all ranks."""
    return [parameter for parameter in bundle if parameter.requires_grad]


def _grad(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _store(parameter: torch.Tensor, reduced: torch.Tensor) -> None:
    """Store the reduced gradient in the layout that the optimizer expects."""
    grad = _grad(parameter)
    if reduced is grad:
        return
    if not grad.is_sparse:
        grad.copy_(reduced)
    elif reduced.is_sparse:
        parameter.grad = reduced
    else:
        parameter.grad = reduced.to_sparse(grad.sparse_dim())


def _remove(hooks: dict[torch.Tensor, RemovableHandle]) -> None:
    for hook in hooks.values():
        hook.remove()
