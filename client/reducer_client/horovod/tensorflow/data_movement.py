"""The operations that move tensors, with Horovod's derivatives.

A gradient is a mean over the ranks, so that a loss that every rank computes is counted only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from reducer_client.arrays import Array
from reducer_client.horovod import arrays, basics
from reducer_client.horovod.handles import wait_all
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average
from reducer_client.horovod.tensorflow.calls import run
from reducer_client.tensorflow import with_derivative


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The tensors of all ranks, concatenated along their first axis in rank order.

    Ranks may have different numbers of rows.
    """

    def gather(array: Array) -> list[Array]:
        return [arrays.allgather(array, name, process_set)]

    return _gather([tensor], gather, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of tensors that are announced together."""

    def gather(*given: Array) -> list[Array]:
        return arrays.grouped_allgather_async(given, name, process_set).wait()

    return _gather(tensors, gather, process_set) if tensors else []


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of the global rank ``root_rank``."""

    def send(array: Array) -> list[Array]:
        return [arrays.broadcast(array, root_rank, name, process_set)]

    def send_back(array: Array) -> list[Array]:
        mean = arrays.allreduce(array, Average, process_set=process_set)
        return [mean if basics.rank() == root_rank else np.zeros_like(mean)]

    given = [tf.convert_to_tensor(tensor)]
    return with_derivative(
        lambda *inputs: run(send, inputs, [t.shape for t in given]),
        lambda *upstream: run(send_back, upstream, [t.shape for t in given]),
        given,
    )[0]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rows from all ranks; ``splits[r]`` rows of this rank's tensor go to rank r of the set.

    Args:
        splits: how many rows go to each rank, integers whose sum is the number of rows. By default
            equal parts.

    Returns:
        The rows by rank and, only if ``splits`` is given, how many rows came from each rank.
    """
    sizes = [] if splits is None else [tf.convert_to_tensor(splits)]

    def exchange(array: Array, split: Array | None = None) -> list[Array]:
        return list(arrays.alltoall(array, split, name, process_set))

    def call(given: Any) -> list[Any]:
        shapes = [any_rows(given.shape), (None,)]
        return run(exchange, [given, *sizes], shapes, [given.dtype, tf.int32])

    rows, received = _exchanged(call, tf.convert_to_tensor(tensor), process_set)
    return rows if splits is None else (rows, received)


def _gather(
    tensors: Sequence[Any], gather: Callable[..., list[Array]], process_set: ProcessSet
) -> list[Any]:
    """The derivative is this rank's rows of the mean over all ranks."""
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]

    def own_rows(rows: Array, *upstream: Array) -> list[Array]:
        works = [arrays.allreduce_async(a, Average, process_set=process_set) for a in upstream]
        means = wait_all(works)
        counts = arrays.allgather(rows[np.newaxis], process_set=process_set)
        starts = counts[: process_set.rank()].sum(axis=0)
        places = zip(means, starts, rows, strict=True)
        return [mean[start : start + count] for mean, start, count in places]

    def back(*upstream: Any) -> list[Any]:
        rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in given])
        shapes, dtypes = [t.shape for t in given], [gradient.dtype for gradient in upstream]
        return run(own_rows, [rows, *upstream], shapes, dtypes)

    shapes = [any_rows(tensor.shape) for tensor in given]
    return with_derivative(lambda *inputs: run(gather, inputs, shapes), back, given)


def _exchanged(
    call: Callable[[Any], list[Any]], given: Any, process_set: ProcessSet
) -> tuple[Any, Any]:
    """Run ``call``, which returns rows and how many rows came from each rank.

    The derivative sends the gradient of each row back to the rank that sent the row.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types here
    def differentiable(tensor: Any) -> tuple[Any, Any]:
        rows, received = call(tensor)

        def back(upstream: Any, _: Any) -> Any:
            return tf.ensure_shape(alltoall(upstream, received, None, process_set)[0], given.shape)

        return (rows, received), back

    rows, received = differentiable(given)
    return rows, received


def any_rows(shape: Any) -> Any:
    """The shape with an unknown number of rows."""
    return tf.TensorShape([None]).concatenate(shape[1:])
