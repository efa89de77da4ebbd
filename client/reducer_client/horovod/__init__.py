"""Horovod's API on the reducers: ``import reducer_client.horovod as hvd``.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

The package has the names of ``horovod.torch``. PyTorch is imported at the first use of a name that
needs it. ``reducer_client.horovod.arrays`` has the operations on NumPy arrays.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reducer_client.horovod.arrays import barrier
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
from reducer_client.horovod.counters import stats
from reducer_client.horovod.errors import DuplicateNameError, HorovodInternalError
from reducer_client.horovod.handles import poll
from reducer_client.horovod.objects import allgather_object, broadcast_object
from reducer_client.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from reducer_client.horovod.requests import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from reducer_client.horovod.synchronous import synchronize

if TYPE_CHECKING:
    from reducer_client.horovod.torch import elastic
    from reducer_client.horovod.torch.asynchronous import (
        allgather_async,
        allreduce_async,
        allreduce_async_,
        alltoall_async,
        broadcast_async,
        broadcast_async_,
        grouped_allgather_async,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter_async,
        reducescatter_async,
    )
    from reducer_client.horovod.torch.compression import Compression
    from reducer_client.horovod.torch.functions import (
        broadcast_optimizer_state,
        broadcast_parameters,
    )
    from reducer_client.horovod.torch.ops import (
        allgather,
        allreduce,
        allreduce_,
        alltoall,
        broadcast,
        broadcast_,
        grouped_allgather,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_reducescatter,
        join,
        reducescatter,
    )
    from reducer_client.horovod.torch.optimizer import DistributedOptimizer
    from reducer_client.horovod.torch.sparse import sparse_allreduce_async
    from reducer_client.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DuplicateNameError",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]


# The modules of `horovod.torch` that have the names of its API; `asynchronous` and `ops` have all
# that are not listed here.
_MODULES = {
    "Compression": "compression",
    "DistributedOptimizer": "optimizer",
    "SyncBatchNorm": "sync_batch_norm",
    "broadcast_optimizer_state": "functions",
    "broadcast_parameters": "functions",
    "sparse_allreduce_async": "sparse",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "elastic":
        return import_module(f"{__name__}.torch.elastic")
    module = _MODULES.get(name, "asynchronous" if "_async" in name else "ops")
    return getattr(import_module(f"{__name__}.torch.{module}"), name)
