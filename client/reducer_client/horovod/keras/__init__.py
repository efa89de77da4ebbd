"""Horovod's API for Keras 3 on TensorFlow: ``import reducer_client.horovod.keras as hvd``.

On other backends of Keras: ``reducer_client.keras``.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from reducer_client.arrays import Array
from reducer_client.horovod import arrays
from reducer_client.horovod.arrays import barrier
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
from reducer_client.horovod.keras import callbacks
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, ReduceOp, Sum
from reducer_client.keras.all_reduce import with_reduction

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"reducer_client.horovod.keras: Keras runs on {keras.backend.backend()}, expected "
        "tensorflow; reducer_client.keras is for the other backends"
    )

from reducer_client.horovod.tensorflow import Compression, broadcast_global_variables
from reducer_client.horovod.tensorflow.gradients import (
    local_variables,
    reduction_of_gradients,
    weights_of,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802 - makes an optimizer, and programs know it by this name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class and state that first reduces its gradients over all ranks.

    See ``reducer_client.keras.DistributedOptimizer``. Compile the model with ``jit_compile=False``.
    ``name``, ``device_dense``, ``device_sparse``, ``num_groups`` and ``groups`` are accepted and
    ignored.
    """
    reduce = reduction_of_gradients(
        compression, op, gradient_predivide_factor, process_set, sparse_as_dense
    )
    return with_reduction(optimizer, reduce)


def PartialDistributedOptimizer(  # noqa: N802 - makes an optimizer, and programs know it so
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedOptimizer` that leaves the gradients of some layers to each rank.

    Args:
        local_layers: a Keras layer or several; each must be built.
        scale_local_gradients: divide their gradients by the number of ranks.
    """
    reduce = reduction_of_gradients(
        compression, op, gradient_predivide_factor, process_set, sparse_as_dense
    )
    weights = weights_of(local_layers)
    return with_reduction(
        optimizer, reduce, local_variables(weights, process_set, scale_local_gradients)
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """The value as an array, averaged over all ranks; summed if ``average`` is false."""
    op = Average if average else Sum
    return arrays.allreduce(np.asarray(value), op, name, prescale_factor, postscale_factor)


def allgather(value: Any, name: str | None = None) -> Array:
    """The arrays of all ranks, concatenated along their first axis in rank order.

    Ranks may have different numbers of rows.
    """
    return arrays.allgather(np.asarray(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Array:
    """The array of ``root_rank``, on all ranks.

    Raises ValueError if ``root_rank`` is not a rank, and HorovodInternalError if the call failed.
    """
    return arrays.broadcast(np.asarray(value), root_rank, name)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Load a model; its optimizer, state included, is then distributed.

    Args:
        custom_optimizers: classes of optimizers that are not Keras' own.
    """
    named = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**named, **(custom_objects or {})})
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
