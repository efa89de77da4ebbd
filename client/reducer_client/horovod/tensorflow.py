"""Horovod's API for TensorFlow 2: ``import reducer_client.horovod.tensorflow as hvd``.

The operations work eagerly and in a tf.function, where they run one after the other in the order of
the program. Those without a name match by their number, as everywhere in
``reducer_client.horovod``; a function that a rank traces once more changes nothing in that.
``allreduce`` with Average or Sum has a derivative, the others have none.

``device_dense`` and ``device_sparse`` are taken and not needed: tensors go through host memory.
IndexedSlices are made dense, with or without ``sparse_as_dense``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from reducer_client.arrays import Array
from reducer_client.horovod import arrays
from reducer_client.horovod.arrays import barrier, join
from reducer_client.horovod.basics import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.horovod.handles import wait_all
from reducer_client.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from reducer_client.horovod.requests import Average, Max, Min, Product, ReduceOp, Sum
from reducer_client.tensorflow import ReducedTape, call_in_order, own_derivative

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class NoneCompressor:
    """Sends the tensor itself."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What is sent, and what ``decompress`` must know to undo it."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was before ``compress``, as far as that is possible."""
        return tensor


class FP16Compressor:
    """Sends floating point as float16. What is beyond 65504 on any rank, or in sum, is Inf."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What is sent, and the dtype before."""
        narrow = tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor
        return narrow, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Cast back."""
        return tf.cast(tensor, ctx)


class Compression:
    """What tensors travel as; a class with the same two static methods will do as well."""

    none = NoneCompressor
    fp16 = FP16Compressor


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `grouped_allreduce`, of one tensor."""
    scales = (prescale_factor, postscale_factor)
    return _allreduce([tensor], _find_op(op, average), scales, compression, name, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The tensors reduced over the ranks of the set, announced and so fused together.

    Args:
        average: of old programs; ``op`` is Average or Sum.
        name: equal on all ranks; without it the n-th call of all ranks is one operation.
        prescale_factor: multiplied before the reduction, ``postscale_factor`` after it.

    Raises:
        HorovodInternalError: eagerly; in a tf.function a tf.errors.OpError with its text.
    """
    scales = (prescale_factor, postscale_factor)
    return _allreduce(tensors, _find_op(op, average), scales, compression, name, process_set)


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The ranks' tensors put together along the first axis, which may differ between them."""
    given = tf.convert_to_tensor(tensor)

    def gather(array: Array) -> list[Array]:
        return [arrays.allgather(array, name, process_set)]

    return call_in_order(global_process_set, gather, [given], [(None, *given.shape[1:])])[0]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of the global rank ``root_rank``."""
    given = tf.convert_to_tensor(tensor)

    def send(array: Array) -> list[Array]:
        return [arrays.broadcast(array, root_rank, name, process_set)]

    return call_in_order(global_process_set, send, [given], [given.shape])[0]


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Give all ranks of the set the values of ``root_rank``; outside of tf.function."""
    handles = [
        arrays.broadcast_async(np.asarray(variable.numpy()), root_rank, None, process_set)
        for variable in variables
    ]
    for variable, value in zip(variables, wait_all(handles), strict=True):
        variable.assign(value)


def DistributedGradientTape(  # noqa: N802 - makes a tape, and programs know it by this name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> ReducedTape:
    """The tape with a ``gradient`` that is reduced over the ranks of the set.

    All gradients are announced together, so ``num_groups`` and ``groups`` are not needed.
    """
    reduce = reduction_of_gradients(compression, op, gradient_predivide_factor, process_set)
    return ReducedTape(gradtape, reduce)


def reduction_of_gradients(
    compression: Any, op: ReduceOp, gradient_predivide_factor: float, process_set: ProcessSet
) -> Any:
    """From a list of gradients to their reductions; ValueError where the factor has no meaning."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(
            f"gradient_predivide_factor={gradient_predivide_factor}, op={op!r}: expected Average"
        )
    scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    return lambda gradients: _allreduce(gradients, op, scales, compression, None, process_set)


def _find_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    if op is not None and average is not None:
        raise ValueError(f"op={op!r} and average={average!r}: expected one of them")
    return ReduceOp(op) if op is not None else Sum if average is False else Average


def _allreduce(
    tensors: Sequence[Any],
    op: ReduceOp,
    scales: tuple[float, float],
    compression: Any,
    name: str | None,
    process_set: ProcessSet,
) -> list[Any]:
    def reduce(*given: Array) -> list[Array]:
        return _reduce_arrays(given, op, scales, name, process_set)

    def call(*given: Any) -> list[Any]:
        return call_in_order(global_process_set, reduce, given, [tensor.shape for tensor in given])

    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    reduced = own_derivative(call, sent) if op in (Average, Sum) else call(*sent)
    contexts = [context for _, context in pairs]
    return [compression.decompress(r, c) for r, c in zip(reduced, contexts, strict=True)]


def _reduce_arrays(
    given: Sequence[Array],
    op: ReduceOp,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[Array]:
    """One announcement for each dtype."""
    members: dict[str, list[int]] = {}
    for index, array in enumerate(given):
        members.setdefault(array.dtype.name, []).append(index)
    works = []
    for dtype, indices in members.items():
        works.append(
            arrays.grouped_allreduce_async(
                [given[i] for i in indices],
                op,
                None if name is None else f"{name}.{dtype}",
                *scales,
                process_set,
            )
        )
    results = list(given)
    for indices, found in zip(members.values(), wait_all(works), strict=True):
        for index, result in zip(indices, found, strict=True):
            results[index] = result
    return results
