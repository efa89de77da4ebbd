"""The ranks of a host that train one DDP module: one of them exchanges for all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from reducer_client.group import Group


class Host:
    """The process group of a DDP module. Its first rank has the group to the other hosts."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self._process_group = process_group
        self._first = dist.get_process_group_ranks(process_group)[0]

    def share(self, tensor: torch.Tensor) -> None:
        """Give all ranks of the host the first rank's values. All ranks call this."""
        if tensor.numel():
            dist.broadcast(tensor, self._first, group=self._process_group)


def find_host(model: torch.nn.Module, group: Group | None) -> Host | None:
    """The host of a DDP module; None for other modules.

    Raises ValueError if the wrong ranks have a group.
    """
    if not isinstance(model, DistributedDataParallel):
        if group is None:
            raise ValueError(
                "group=None: expected a Group; only ranks of a DistributedDataParallel module that "
                "are not the first of their host have none"
            )
        return None
    rank = dist.get_rank(_group_of(model))
    if (rank == 0) != (group is not None):
        got = "None" if group is None else "a Group"
        raise ValueError(
            f"rank {rank} of the DistributedDataParallel module has group={got}: expected a Group "
            "on rank 0, which exchanges for all ranks of its host, and None on the others"
        )
    return Host(_group_of(model))


def _group_of(model: DistributedDataParallel) -> Any:
    """The process group of a DDP module, which torch declares as optional."""
    return model.process_group
