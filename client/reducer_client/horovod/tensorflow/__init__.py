"""Horovod's API for TensorFlow 2: ``import reducer_client.horovod.tensorflow as hvd``.

The operations work eagerly and in a tf.function, where they run one after the other in the order of
the program. Operations without a name are matched by their count, as everywhere in
``reducer_client.horovod``. They are counted when they run, so a rank may trace a function again.
Every operation has Horovod's derivative, but for reductions with Min, Max and Product, which have
none.

``device_dense`` and ``device_sparse`` are accepted and ignored: tensors go through host memory.
"""

from __future__ import annotations

from reducer_client.horovod.arrays import barrier, join
from reducer_client.horovod.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.horovod.objects import allgather_object, broadcast_object
from reducer_client.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from reducer_client.horovod.requests import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from reducer_client.horovod.tensorflow.compression import Compression
from reducer_client.horovod.tensorflow.data_movement import (
    allgather,
    alltoall,
    broadcast,
    grouped_allgather,
)
from reducer_client.horovod.tensorflow.functions import (
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)
from reducer_client.horovod.tensorflow.gradients import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from reducer_client.horovod.tensorflow.reductions import (
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from reducer_client.horovod.tensorflow.scalars import (
    local_rank_op,
    local_size_op,
    rank_op,
    size_op,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
