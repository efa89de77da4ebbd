"""HSDP with FSDP2: gloo or nccl shards a model within each host, reducers average over the hosts.

    mesh = init_device_mesh("cuda", (hosts, local), mesh_dim_names=("hosts", "local"))
    fully_shard(model, mesh=mesh["local"])
    reducer_client.torch.fsdp.attach_fsdp(model, mesh["hosts"])

The backend of PyTorch (``init_process_group("reducer")``) needs no such call.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from reducer_client.group import Group
from reducer_client.torch.backend.forming import Formation
from reducer_client.torch.backend.options import Options
from reducer_client.torch.hook.ddp import ReductionState, average


def attach_fsdp(
    model: FSDPModule,
    hosts: DeviceMesh | Group,
    *,
    options: Options | None = None,
    timeout: float = 300.0,
) -> ReductionState:
    """Average the gradients of a sharded model over all hosts. All ranks must call this function.

    FSDP's reduce-scatter gives each rank the mean of its shard over the ranks of its host. The hook
    then takes the mean over the ranks that have the same shard on the other hosts. The result is
    the mean over all ranks, unless ``set_gradient_divide_factor`` is used. The backward pass waits
    for each reduction. On CUDA the host waits until a mean is in host memory, and the stream for
    the copy to the device; with ``REDUCER_CUDA_WAIT=stream`` only the stream waits.

    Args:
        model: module on which ``fully_shard`` was called with a mesh of one host's ranks.
        hosts: the mesh dimension over the hosts, or a joined group of its ranks.
        options: addresses, job and ``wire_dtype``. By default they come from the environment.
        timeout: seconds for joining, and for each reduction.

    Returns:
        The state of the hook, with ``group``, ``last_error`` and ``bytes_reduced``. Close its group
        at the end.

    Raises:
        TypeError: ``model`` has no ``fully_shard``.
        ValueError, ReducerError: as ``reducer_client.connect``, if the ranks cannot join.
    """
    if not isinstance(model, FSDPModule):
        raise TypeError(f"expected a module after fully_shard, got {type(model).__name__}")
    options = options or Options()
    group = hosts if isinstance(hosts, Group) else _join(hosts, options, timeout)
    state = ReductionState(group, wire_dtype=options.wire_dtype, timeout=timeout)
    hook = partial(reduce_shard, state)
    modules: Any = model
    for module in modules.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(hook)
    return state


def reduce_shard(state: ReductionState, shard: torch.Tensor) -> None:
    """FSDP's hook after a reduce-scatter: replaces the shard by its mean over the hosts.

    Raises RuntimeError with the text of the failure. ``state.last_error`` has the error itself.
    """
    state.bytes_reduced += shard.numel() * shard.element_size()
    average(state, shard, 0).wait()


def _join(mesh: DeviceMesh, options: Options, timeout: float) -> Group:
    ranks = dist.get_process_group_ranks(mesh.get_group())
    name = f"replicas-of-{ranks[0]}"
    limit = timedelta(seconds=timeout)
    formation = Formation(name, mesh.get_local_rank(), len(ranks), limit, is_default=False)
    store: Any = dist.distributed_c10d._get_default_store()
    return formation.form(PrefixStore(name, store), options, None)
