"""The calls of a process group that do not go through reducers.

Named one by one: a call that torch adds shall fail, and not silently take the slow way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllToAllOptions, GatherOptions, ScatterOptions

from reducer_client.torch.collective import collective
from reducer_client.torch.inner import InnerGroups

Tensors = list[torch.Tensor]


# What the stub says of the methods is not what torch calls them with.
_ProcessGroup: Any = dist.ProcessGroup


class DelegatingGroup(_ProcessGroup):  # type: ignore[misc]  # the base is Any
    """What two ranks do alone, and what gives each rank something else: over the inner groups."""

    def __init__(self, rank: int, world_size: int, inner: InnerGroups) -> None:
        super().__init__(rank, world_size)
        self._inner = inner
        # The works of the calls that are made inside a coalescing manager of torch.
        self.coalescing: list[Any] | None = None

    @collective("send")
    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> Any:  # noqa: N803
        return self._inner.find(tensors[0].device).send(tensors, dstRank, tag)

    @collective("recv")
    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> Any:  # noqa: N803
        return self._inner.find(tensors[0].device).recv(tensors, srcRank, tag)

    @collective("recv_anysource")
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return self._inner.find(tensors[0].device).recv_anysource(tensors, tag)

    @collective("scatter")
    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        options = opts or ScatterOptions()
        return self._inner.find(outputs[0].device).scatter(outputs, inputs, options)

    @collective("gather")
    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        options = opts or GatherOptions()
        return self._inner.find(inputs[0].device).gather(outputs, inputs, options)

    @collective("all_to_all")
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        options = opts or AllToAllOptions()
        return self._inner.find(inputs[0].device).alltoall(outputs, inputs, options)

    @collective("all_to_all")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        inner = self._inner.find(input.device)
        options = opts or AllToAllOptions()
        return inner.alltoall_base(output, input, output_splits, input_splits, options)

    alltoall_base = all_to_all_single
