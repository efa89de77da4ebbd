"""The operations that reduce, with Horovod's derivatives; Min, Max and Product have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from reducer_client.arrays import Array
from reducer_client.horovod import arrays
from reducer_client.horovod.handles import wait_all
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, ReduceOp, Sum, find_op
from reducer_client.horovod.tensorflow.calls import run
from reducer_client.horovod.tensorflow.compression import Compression
from reducer_client.horovod.tensorflow.data_movement import any_rows, grouped_allgather
from reducer_client.quantized import BlocksName
from reducer_client.tensorflow import with_derivative


@dataclass(frozen=True)
class Reduction:
    """How a call reduces: its arguments apart from the tensors.

    ``scales``: the factors before and after the sum (prescale_factor, postscale_factor).
    """

    op: ReduceOp
    scales: tuple[float, float]
    compression: Any
    name: str | None
    process_set: ProcessSet

    @property
    def wire_dtype(self) -> BlocksName | None:
        wire: BlocksName | None = getattr(self.compression, "wire_dtype", None)
        return wire


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
    how = Reduction(ReduceOp(find_op(op, average)), scales, compression, name, process_set)
    return reduce_all([tensor], how)[0]


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
    """The tensors reduced over the ranks of the set, announced together so that they can be fused.

    The result of IndexedSlices is IndexedSlices with the slices of all ranks, by rank. Averages of
    integer slices are floating point, as TensorFlow divides integers.

    Args:
        average: deprecated; use ``op``. True means Average, False means Sum.
        name: equal on all ranks; without it the n-th call of all ranks is one operation.
        prescale_factor: multiplied before the reduction, ``postscale_factor`` after it.

    Raises:
        HorovodInternalError: in eager mode; the error is also a tf.errors.FailedPreconditionError.
            In a tf.function TensorFlow raises a tf.errors.OpError with the same text.
        NotImplementedError: IndexedSlices with another op than Average and Sum, or with factors.
    """
    scales = (prescale_factor, postscale_factor)
    how = Reduction(ReduceOp(find_op(op, average)), scales, compression, name, process_set)
    return reduce_all(tensors, how)


def reduce_all(tensors: Sequence[Any], how: Reduction) -> list[Any]:
    """The reductions of tensors and IndexedSlices, in the order given."""
    slices = [tensor for tensor in tensors if isinstance(tensor, tf.IndexedSlices)]
    dense = [tensor for tensor in tensors if not isinstance(tensor, tf.IndexedSlices)]
    gathered = iter(_reduce_slices(slices, how))
    reduced = iter(_reduce_dense(dense, how))
    return [next(gathered if isinstance(t, tf.IndexedSlices) else reduced) for t in tensors]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduction.

    With n rows and s ranks, the first n % s ranks get one row more than the others.
    """
    how = Reduction(op, (prescale_factor, postscale_factor), compression, name, process_set)

    def scatter(array: Array) -> list[Array]:
        options = (op, name, *how.scales, process_set)
        return [arrays.reducescatter(array, *options, wire_dtype=how.wire_dtype)]

    return _scatter([tensor], scatter, how)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of tensors that are announced together."""
    how = Reduction(op, (prescale_factor, postscale_factor), compression, None, process_set)

    def scatter(*given: Array) -> list[Array]:
        options = (op, None, *how.scales, process_set)
        handle = arrays.grouped_reducescatter_async(given, *options, wire_dtype=how.wire_dtype)
        return handle.wait()

    return _scatter(tensors, scatter, how) if tensors else []


def _reduce_dense(tensors: Sequence[Any], how: Reduction) -> list[Any]:
    def reduce(*given: Array) -> list[Array]:
        return _reduce_arrays(given, how)

    def call(*given: Any) -> list[Any]:
        return run(reduce, given, [tensor.shape for tensor in given])

    if not tensors:
        return []
    sent, contexts = _compressed(tensors, how.compression)
    reduced = with_derivative(call, call, sent) if how.op in (Average, Sum) else call(*sent)
    return [how.compression.decompress(r, c) for r, c in zip(reduced, contexts, strict=True)]


def _reduce_slices(slices: Sequence[Any], how: Reduction) -> list[Any]:
    if not slices:
        return []
    if how.op not in (Average, Sum) or how.scales != (1.0, 1.0):
        raise NotImplementedError(
            f"IndexedSlices with op {how.op!r} and factors {how.scales}: expected Average or Sum, "
            "and no factors; otherwise make them dense, by sparse_as_dense=True or "
            "tf.convert_to_tensor"
        )
    parts = [part for each in slices for part in (each.values, each.indices)]
    gathered = grouped_allgather(parts, how.name, how.process_set)
    values = gathered[::2]
    if how.op == Average:
        values = [part / tf.cast(how.process_set.size(), part.dtype) for part in values]
    return [
        tf.IndexedSlices(part, indices, each.dense_shape)
        for part, indices, each in zip(values, gathered[1::2], slices, strict=True)
    ]


def _reduce_arrays(given: Sequence[Array], how: Reduction) -> list[Array]:
    """One announcement for each dtype."""
    members: dict[str, list[int]] = {}
    for index, array in enumerate(given):
        members.setdefault(array.dtype.name, []).append(index)
    works = []
    for dtype, indices in members.items():
        works.append(
            arrays.grouped_allreduce_async(
                [given[i] for i in indices],
                how.op,
                None if how.name is None else f"{how.name}.{dtype}",
                *how.scales,
                how.process_set,
                wire_dtype=how.wire_dtype,
            )
        )
    results = list(given)
    for indices, found in zip(members.values(), wait_all(works), strict=True):
        for index, result in zip(indices, found, strict=True):
            results[index] = result
    return results


def _scatter(
    tensors: Sequence[Any], scatter: Callable[..., list[Array]], how: Reduction
) -> list[Any]:
    sent, contexts = _compressed(tensors, how.compression)
    shapes = [any_rows(tensor.shape) for tensor in sent]

    def call(*given: Any) -> list[Any]:
        return run(scatter, given, shapes)

    def back(*upstream: Any) -> list[Any]:
        size = (how.process_set.size() or 1) if how.op == Sum else 1
        factor = how.scales[0] * how.scales[1] * size
        scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in upstream]
        return grouped_allgather(scaled, None, how.process_set)

    parts = with_derivative(call, back, sent) if how.op in (Average, Sum) else call(*sent)
    return [how.compression.decompress(p, c) for p, c in zip(parts, contexts, strict=True)]


def _compressed(tensors: Sequence[Any], compression: Any) -> tuple[list[Any], list[Any]]:
    """Return the tensors to send, and for each the context that ``decompress`` needs."""
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]
