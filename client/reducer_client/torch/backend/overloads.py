"""Torch's overloads of the methods of ``ProcessGroup``.

Our methods take lists of tensors and an options object. Torch's methods also take a single tensor,
and a root, an operation or a timeout in place of the options object. Each overload is one function
here, with torch's parameter names. The function returns the arguments for our method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, SupportsIndex, get_args, get_origin

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

Method = Callable[..., Any]
Form = Callable[..., tuple[Any, ...]]
Tensor = torch.Tensor
Tensors = list[torch.Tensor]
Operation = dist.ReduceOp | dist.ReduceOp.RedOpType
Timeout = timedelta | float | None  # seconds

SUM = dist.ReduceOp.SUM


def overloads(*forms: Form) -> Callable[[Method], Method]:
    """Decorator that adds overloads to a method that takes lists and options.

    The method raises TypeError for arguments that match no overload, as torch's methods do.
    """

    def decorate(method: Method) -> Method:
        _, *parameters = inspect.signature(method, eval_str=True).parameters.values()
        own = inspect.Signature(parameters)
        others = [(form, inspect.signature(form, eval_str=True)) for form in forms]

        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _fits(own, args, kwargs):
                return method(self, *args, **kwargs)
            for form, signature in others:
                if _fits(signature, args, kwargs):
                    return method(self, *form(*args, **kwargs))
            signatures = [own, *(signature for _, signature in others)]
            raise TypeError(_refusal(call.__name__, signatures, args, kwargs))

        return call

    return decorate


def _fits(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return False
    return all(
        _matches(value, signature.parameters[name].annotation) for name, value in given.items()
    )


def _matches(value: object, kind: Any) -> bool:
    if get_origin(kind) is not list:
        return isinstance(value, kind)
    (element,) = get_args(kind)
    return isinstance(value, (list, tuple)) and all(_matches(one, element) for one in value)


def _refusal(
    name: str,
    signatures: Sequence[inspect.Signature],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    expected = " or ".join(f"{name}({', '.join(s.parameters)})" for s in signatures)
    named = [f"{key}={_type_name(value)}" for key, value in kwargs.items()]
    return f"{name}: expected {expected}, got ({', '.join([*map(_type_name, args), *named])})"


def _type_name(value: object) -> str:
    """The name of a value's type; for a list also the names of its elements' types."""
    name = type(value).__name__
    if isinstance(value, (list, tuple)):
        return f"{name}[{', '.join(sorted({_type_name(one) for one in value}))}]"
    return name


def _set(options: Any, timeout: Timeout = None, **fields: Any) -> Any:
    for field, value in fields.items():
        setattr(options, field, value)
    if timeout is not None:
        options.timeout = timeout
    return options


def allreduce_one(tensor: Tensor, op: Operation = SUM, timeout: Timeout = None) -> Any:
    return [tensor], _set(AllreduceOptions(), timeout, reduceOp=op)


def allreduce_by(tensors: Tensors, op: Operation = SUM, timeout: Timeout = None) -> Any:
    return tensors, _set(AllreduceOptions(), timeout, reduceOp=op)


def broadcast_one(tensor: Tensor, root: SupportsIndex, timeout: Timeout = None) -> Any:
    return [tensor], _set(BroadcastOptions(), timeout, rootRank=root)


def reduce_one(
    tensor: Tensor, root: SupportsIndex, op: Operation = SUM, timeout: Timeout = None
) -> Any:
    return [tensor], _set(ReduceOptions(), timeout, rootRank=root, reduceOp=op)


def allgather_one(output_tensors: Tensors, input_tensor: Tensor, timeout: Timeout = None) -> Any:
    return [output_tensors], [input_tensor], _set(AllgatherOptions(), timeout)


def gather_one(
    output_tensors: Tensors, input_tensor: Tensor, root: SupportsIndex, timeout: Timeout = None
) -> Any:
    outputs = [output_tensors] if output_tensors else []  # empty except on the root
    return outputs, [input_tensor], _set(GatherOptions(), timeout, rootRank=root)


def scatter_one(
    output_tensor: Tensor, input_tensors: Tensors, root: SupportsIndex, timeout: Timeout = None
) -> Any:
    inputs = [input_tensors] if input_tensors else []  # empty except on the root
    return [output_tensor], inputs, _set(ScatterOptions(), timeout, rootRank=root)


def reduce_scatter_one(
    output: Tensor, input: Tensors, op: Operation = SUM, timeout: Timeout = None
) -> Any:
    return [output], [input], _set(ReduceScatterOptions(), timeout, reduceOp=op)


def alltoall_within(output: Tensors, input: Tensors, timeout: Timeout = None) -> Any:
    return output, input, _set(AllToAllOptions(), timeout)


def all_to_all_single_within(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[SupportsIndex],
    input_split_sizes: list[SupportsIndex],
    timeout: Timeout = None,
) -> Any:
    options = _set(AllToAllOptions(), timeout)
    return output, input, output_split_sizes, input_split_sizes, options


def barrier_within(timeout: Timeout = None) -> Any:
    return (_set(BarrierOptions(), timeout),)
