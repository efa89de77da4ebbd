"""FSDP2 in hybrid form: sharded on a host by gloo or nccl, the same shard of all hosts by reducers.

mesh = init_device_mesh("cuda", (hosts, local), mesh_dim_names=("hosts", "local"))
fully_shard(model, mesh=mesh["local"])
reducer_client.torch.fsdp.attach_fsdp(model, mesh["hosts"])
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
from reducer_client.torch.hook.ddp import ReductionState, exchange


def attach_fsdp(
    model: FSDPModule,
    hosts: DeviceMesh | Group,
    *,
    options: Options | None = None,
    timeout: float = 300.0,
) -> ReductionState:
    """Make the gradients of a sharded model the mean over all hosts; all ranks call it.

    FSDP's reduce-scatter leaves each rank the mean over its host of its shard. The hook sums that
    over the ranks that have the same shard, and divides by their number: together it is the mean
    over all ranks, as long as ``set_gradient_divide_factor`` is not used. The backward pass waits
    for it at every module that was sharded; on CUDA the stream does.

    Args:
        model: on which ``fully_shard`` was called, with a mesh of the ranks of one host.
        hosts: the dimension of the mesh over the hosts, or a joined group of its ranks.
        options: addresses, job and ``wire_dtype``, where the environment does not say.
        timeout: seconds that the hosts have to join, and each reduction then.

    Returns:
        The state, with ``group``, ``last_error`` and ``bytes_reduced``; close its group at the end.
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
    """FSDP's hook for a reduce-scattered gradient: takes the mean over the hosts, in place.

    Raises RuntimeError with the text of what failed; the error itself is ``state.last_error``.
    """
    state.bytes_reduced += shard.numel() * shard.element_size()
    exchange(state, shard, lambda host, on_done: state.submit(host, 0, on_done)).wait()


def _join(mesh: DeviceMesh, options: Options, timeout: float) -> Group:
    ranks = dist.get_process_group_ranks(mesh.get_group())
    name = f"replicas-of-{ranks[0]}"
    limit = timedelta(seconds=timeout)
    formation = Formation(name, mesh.get_local_rank(), len(ranks), limit, is_default=False)
    store: Any = dist.distributed_c10d._get_default_store()
    return formation.form(PrefixStore(name, store), options, None)
