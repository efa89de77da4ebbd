"""The same parameters and buffers on all ranks before the first step."""

from __future__ import annotations

import torch
from torch import nn

from reducer_client.group import Group, wait_or_end
from reducer_client.torch.tensors.packing import Packing
from reducer_client.torch.tensors.partition import partition

_RUN = 32 << 20  # bytes that travel together


@torch.no_grad()
def share(group: Group, model: nn.Module, prefix: str) -> None:
    """Give all ranks the parameters and buffers of rank 0.

    Raises MismatchError if the models of the ranks have other sizes, and other ReducerErrors.
    """
    tensors = [*model.parameters(), *model.buffers()]
    for number, part in enumerate(partition(tensors, _RUN, lambda tensor: tensor.dtype)):
        packing = Packing(part)
        flat = packing.flat().cpu()
        values = flat.view(torch.uint8).numpy()
        key = f"{prefix}/start{number}"
        wait_or_end(group, lambda v=values, k=key: group.broadcast(v, key=k, out=v))  # type: ignore[misc]
        packing.unpack(flat.to(packing.device))
