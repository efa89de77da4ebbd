"""``DistributedOptimizer``: any optimizer of torch, fed with the mean of all ranks' gradients."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from reducer_client.horovod import context
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Adasum, Average, ReduceOp
from reducer_client.horovod.torch.compression import Compression, Compressor
from reducer_client.horovod.torch.functions import parameters_of
from reducer_client.horovod.torch.gradients import Bundle, Gradients, ReductionOptions

NamedParameters = Iterable[tuple[str, torch.Tensor]]
Groups = int | Sequence[Sequence[torch.Tensor]]


def DistributedOptimizer(  # noqa: N802 - the name that programs written for Horovod call
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer, with gradients that are reduced over all ranks while backward passes run.

    ``step`` waits for them. What changes gradients before it, such as clipping or the unscaling of
    a ``GradScaler``, must wait, too::

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    A closure that calls ``backward`` may be given to ``step``; its gradients are waited for.

    Args:
        named_parameters: ``model.named_parameters()``; the names must be unique, and equal on all
            ranks. Without names, parameters are numbered by their position and by the number of the
            optimizer in the process set, so all ranks of the set must make their optimizers in the
            same order.
        compression: the compressor, which says in which dtype gradients are sent.
        backward_passes_per_step: how many backward passes add to the gradients before they are
            reduced. Their sum is reduced: divide the loss if you want a mean.
        op: Average or Sum.
        gradient_predivide_factor: a factor f for Average. Gradients are divided by f before the
            sum, and by size() / f after the sum. The mean is the same; a larger f keeps the sum of
            large 16-bit gradients from overflowing.
        groups: a number divides the parameters into so many groups; the gradients of each group are
            reduced as one. Lists of parameters are groups themselves, and every other parameter is
            a group of its own.
        num_groups: the old name of ``groups``.
        sparse_as_dense: sum sparse gradients as dense ones, instead of gathering the entries.
        process_set: the ranks that take part; the others' gradients are left alone.

    Returns:
        An object of a subclass of the optimizer's class, with ``synchronize()``,
        ``skip_synchronize()`` and ``set_backward_passes_per_step(n)``. It shares state and
        parameter groups with ``optimizer``, which must not be stepped any more.

    Raises ValueError for arguments that do not fit, such as a name that two parameters have.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError("optimizer: it is distributed already, and would reduce gradients twice")
    if op == Adasum:
        raise NotImplementedError("op Adasum: reducers sum; expected op Average or Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor: expected op Average with it, got {op!r}")
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: expected 1 or more")
    if num_groups:
        warnings.warn("num_groups: its name is groups now", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    # Arguments are checked before the context is asked for: they are wrong before init, too.
    given = None if named_parameters is None else _checked_names(optimizer, named_parameters)
    bundles = _bundles(parameters_of(optimizer), groups)
    made = context.current().optimizers
    number = made[process_set.process_set_id]
    names = _numbered(optimizer, number) if given is None else given
    gradients = Gradients(
        names,
        bundles,
        backward_passes_per_step,
        ReductionOptions(compression, op, gradient_predivide_factor, sparse_as_dense, process_set),
    )
    made[process_set.process_set_id] += 1
    return _distributed(optimizer, number, names, gradients)


class _Distributed(torch.optim.Optimizer):
    """Mixin that precedes the optimizer's own class in the MRO of a distributed optimizer."""

    _optimizer_number: int
    _parameter_names: dict[torch.Tensor, str]
    _gradients: Gradients
    _is_synchronized: bool
    _skips: bool

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes that add to the gradients before a reduction."""
        return self._gradients.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number for the next step. Raises ValueError in the middle of a step."""
        if self._gradients.under_way:
            raise ValueError("set_backward_passes_per_step: call it after step(), not before")
        self._gradients.passes = passes

    def synchronize(self) -> None:
        """Wait for the reduced gradients. Raises HorovodInternalError if the reduction failed."""
        self._gradients.finish()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Generator[None]:
        """In this context ``step`` does not wait: the program has called ``synchronize``."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients, then step.

        After ``synchronize`` without ``skip_synchronize`` it warns, and reduces gradients again
        only if there was another backward pass. A program that catches an interrupt of the update
        and repeats the step would also reduce the gradients again, on this rank alone. Such an
        interrupt therefore ends Horovod as well.
        """
        with self._gradients.end_on_interrupt():
            if not self._skips:
                self._synchronize_for_step(closure is not None)
                closure = closure and self._synchronized(closure)
            try:
                return super().step(closure)
            finally:
                self._is_synchronized = False

    # Hooks of steps run once, when the gradients are there: in the step of the optimizer's class.
    cast(Any, step).hooked = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As usual; AssertionError while gradients are being reduced."""
        if self._gradients.under_way:
            raise AssertionError(
                "zero_grad() after backward() and before step() or synchronize(): the gradients "
                "are being reduced; call it before backward()"
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As usual; gradients that are under way are forgotten."""
        self._gradients.forget()
        self._is_synchronized = False
        groups = self.param_groups
        super().load_state_dict(state_dict)
        # A scheduler of the optimizer that this was made from goes on with the groups that it has.
        for group, loaded in zip(groups, self.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        self.param_groups = groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As usual; the parameters are numbered, and their gradients reduced one by one."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        added = self.param_groups[index]["params"]
        number = self._optimizer_number
        self._parameter_names.update((p, _name(number, index, j)) for j, p in enumerate(added))
        self._gradients.add([(p,) for p in added])

    def _synchronize_for_step(self, has_closure: bool) -> None:
        if self._is_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): put `with optimizer.skip_synchronize():` around step()",
                stacklevel=3,
            )
        if self._gradients.under_way or not (self._is_synchronized or has_closure):
            self.synchronize()

    def _synchronized(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            # Also where no gradient of this rank came: another rank may have one.
            if self._gradients.under_way or not self._is_synchronized:
                self._gradients.finish()
            self._is_synchronized = False
            return loss

        return evaluate


def forget_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Set the optimizer's gradients to None, and forget those that are being reduced."""
    if isinstance(optimizer, _Distributed):
        optimizer._gradients.forget()
        optimizer._is_synchronized = False
    optimizer.zero_grad()


def _distributed(
    optimizer: torch.optim.Optimizer,
    number: int,
    names: dict[torch.Tensor, str],
    gradients: Gradients,
) -> _Distributed:
    """An object of a subclass of the optimizer's class, with everything that the optimizer has."""
    kind = type(optimizer)
    made = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__})
    distributed: _Distributed = object.__new__(made)
    # A learning-rate scheduler may have put a step of its own on the object: of the old class.
    kept = {name: value for name, value in vars(optimizer).items() if name != "step"}
    distributed.__dict__.update(kept)
    distributed._optimizer_number = number
    distributed._parameter_names = names
    distributed._gradients = gradients
    distributed._is_synchronized = distributed._skips = False
    return distributed


def _name(optimizer: int, group: int, index: int) -> str:
    return f"optimizer.{optimizer}.{group}.{index}"


def _numbered(optimizer: torch.optim.Optimizer, number: int) -> dict[torch.Tensor, str]:
    """Names of the parameters for the n-th optimizer of a process set."""
    return {
        p: _name(number, i, j)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    }


def _checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: NamedParameters
) -> dict[torch.Tensor, str]:
    """The caller's names; ValueError unless every parameter of the optimizer has its own."""
    named = list(named_parameters)
    if any(not isinstance(entry, tuple) for entry in named):
        raise ValueError("named_parameters: expected pairs, as model.named_parameters() gives")
    twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if twice:
        raise ValueError(f"named_parameters: names must be unique; more than once: {twice}")
    names = {parameter: name for name, parameter in named}
    nameless = [tuple(p.shape) for p in parameters_of(optimizer) if p not in names]
    if nameless:
        raise ValueError(
            "named_parameters: expected a name for every parameter of the optimizer, got no name "
            f"for parameters of shapes {nameless}"
        )
    return names


def _bundles(parameters: list[torch.Tensor], groups: Groups | None) -> list[Bundle]:
    if groups is None:
        return [(p,) for p in parameters]
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError(f"groups={groups}: expected 1 or more, or lists of parameters")
        size, rest = divmod(len(parameters), groups)
        ends = [(i + 1) * size + min(i + 1, rest) for i in range(groups)]
        parts = zip([0, *ends], ends, strict=False)
        return [tuple(parameters[start:end]) for start, end in parts if start < end]
    listed = [p for group in groups for p in group]
    if not all(isinstance(p, torch.Tensor) for p in listed):
        found = next(type(p).__name__ for p in listed if not isinstance(p, torch.Tensor))
        raise ValueError(f"groups: expected lists of tensors, got a {found}")
    if len(set(listed)) != len(listed):
        shape = next(tuple(p.shape) for p, times in Counter(listed).items() if times > 1)
        raise ValueError(
            f"groups: a parameter of shape {shape} is listed more than once; expected each once"
        )
    known = set(parameters)
    bundles = [tuple(p for p in group if p in known) for group in groups]
    single = [(p,) for p in parameters if p not in set(listed)]
    return [*(bundle for bundle in bundles if bundle), *single]
