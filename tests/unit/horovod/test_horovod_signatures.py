"""The parameters of the operations. Programs for Horovod pass them by position and by name."""

from __future__ import annotations

from inspect import Parameter, getdoc, signature
from types import ModuleType
from typing import Any

import pytest

import reducer_client.horovod.torch as torch_operations
from reducer_client.horovod import arrays
from reducer_client.horovod.process_sets import global_process_set
from reducer_client.horovod.requests import Average

_FACTORS = "prescale_factor=1.0, postscale_factor=1.0, process_set=global"
_DTYPES = "dtype=None, wire_dtype=None"
_ARRAYS = {
    "allgather": "array, name=None, process_set=global, *, dtype=None",
    "allgather_async": "array, name=None, process_set=global, *, dtype=None",
    "allreduce": f"array, op=Average, name=None, {_FACTORS}, *, out=None, {_DTYPES}",
    "allreduce_async": f"array, op=Average, name=None, {_FACTORS}, *, out=None, {_DTYPES}",
    "alltoall": "array, splits=None, name=None, process_set=global, *, dtype=None",
    "alltoall_async": "array, splits=None, name=None, process_set=global, *, dtype=None",
    "barrier": "process_set=global",
    "broadcast": "array, root_rank, name=None, process_set=global, *, out=None, dtype=None",
    "broadcast_async": "array, root_rank, name=None, process_set=global, *, out=None, dtype=None",
    "grouped_allgather_async": "arrays, name=None, process_set=global, *, dtype=None",
    "grouped_allreduce_async": (
        f"arrays, op=Average, name=None, {_FACTORS}, *, outs=None, {_DTYPES}"
    ),
    "grouped_reducescatter_async": (f"arrays, op=Average, name=None, {_FACTORS}, *, {_DTYPES}"),
    "join": "",
    "poll": "handle",
    "reducescatter": f"array, op=Average, name=None, {_FACTORS}, *, {_DTYPES}",
    "reducescatter_async": f"array, op=Average, name=None, {_FACTORS}, *, {_DTYPES}",
    "synchronize": "handle",
}

_REDUCE = f"average=None, name=None, op=None, {_FACTORS}"
_COMPRESSED = _REDUCE.replace("op=None", "compression=None, op=None")
_SCATTER = "op=Average, process_set=global, prescale_factor=1.0, postscale_factor=1.0"
_TORCH = {
    "allgather": "tensor, name=None, process_set=global",
    "allgather_async": "tensor, name=None, process_set=global",
    "allreduce": f"tensor, {_COMPRESSED}",
    "allreduce_": f"tensor, {_REDUCE}",
    "allreduce_async": f"tensor, {_REDUCE}",
    "allreduce_async_": f"tensor, {_REDUCE}",
    "alltoall": "tensor, splits=None, name=None, process_set=global",
    "alltoall_async": "tensor, splits=None, name=None, process_set=global",
    "barrier": "process_set=global",
    "broadcast": "tensor, root_rank, name=None, process_set=global",
    "broadcast_": "tensor, root_rank, name=None, process_set=global",
    "broadcast_async": "tensor, root_rank, name=None, process_set=global",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=global",
    "broadcast_parameters": "params, root_rank",
    "grouped_allgather": "tensors, name=None, process_set=global",
    "grouped_allgather_async": "tensors, name=None, process_set=global",
    "grouped_allreduce": f"tensors, {_COMPRESSED}",
    "grouped_allreduce_": f"tensors, {_REDUCE}",
    "grouped_allreduce_async": f"tensors, {_REDUCE}",
    "grouped_allreduce_async_": f"tensors, {_REDUCE}",
    "grouped_reducescatter": f"tensors, name=None, compression=None, {_SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {_SCATTER}",
    "join": "device=-1",
    "poll": "handle",
    "reducescatter": f"tensor, name=None, compression=None, {_SCATTER}",
    "reducescatter_async": f"tensor, name=None, {_SCATTER}",
    "sparse_allreduce_async": "tensor, name, op, process_set=global",
    "synchronize": "handle",
}


@pytest.mark.parametrize(("module", "expected"), [(arrays, _ARRAYS), (torch_operations, _TORCH)])
def test_operations_keep_their_parameters(module: ModuleType, expected: dict[str, str]) -> None:
    functions = {name: getattr(module, name) for name in expected}
    assert {name: _parameters(function) for name, function in functions.items()} == expected
    assert {name: function.__name__ for name, function in functions.items()} == {
        name: name for name in expected
    }
    assert [name for name, function in functions.items() if not getdoc(function)] == []


def test_every_operation_on_arrays_is_recorded() -> None:
    assert sorted(arrays.__all__) == sorted(_ARRAYS)


def _parameters(function: Any) -> str:
    parts = []
    for parameter in signature(function).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(parameter.name + _default(parameter.default))
    return ", ".join(parts)


def _default(value: Any) -> str:
    if value is Parameter.empty:
        return ""
    if value is global_process_set:
        return "=global"
    return "=Average" if value is Average else f"={value!r}"
