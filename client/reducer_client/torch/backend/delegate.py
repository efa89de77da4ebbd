"""The calls of a process group that use gloo or nccl instead of the reducers.

Every such call is listed here. A call that a later torch adds therefore fails instead of silently
taking the slow path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllToAllOptions, GatherOptions, ScatterOptions

from reducer_client.torch.backend.collective import collective
from reducer_client.torch.backend.inner_groups import InnerGroups
from reducer_client.torch.backend.overloads import (
    all_to_all_single_within,
    alltoall_within,
    gather_one,
    overloads,
    scatter_one,
)
from reducer_client.torch.calls.group_calls import GroupCalls
from reducer_client.torch.tensors.memory import resolved, with_memory

Tensors = list[torch.Tensor]


# Torch calls the methods with other arguments than its stub declares.
_ProcessGroup: Any = dist.ProcessGroup


class DelegatingGroup(_ProcessGroup):  # type: ignore[misc]  # the base is Any
    """Group whose point-to-point, scatter, gather and all-to-all calls use the inner groups.

    The inner groups read and write the raw memory of tensors. Tensors whose memory does not hold
    their values are therefore copied (`_plain`).
    """

    def __init__(self, rank: int, world_size: int, calls: GroupCalls, inner: InnerGroups) -> None:
        super().__init__(rank, world_size)
        self._calls = calls
        self._inner = inner
        # Works of the calls inside torch's coalescing manager; None outside of it.
        self.coalescing: list[Any] | None = None

    @collective("send")
    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> Any:  # noqa: N803
        return self._inner.find(tensors[0].device).send(_plain(tensors), dstRank, tag)

    @collective("recv")
    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> Any:  # noqa: N803
        return self._fill(
            tensors, lambda inner, plain: inner.recv(plain, srcRank, tag), tensors[0].device
        )

    @collective("recv_anysource")
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return self._fill(
            tensors, lambda inner, plain: inner.recv_anysource(plain, tag), tensors[0].device
        )

    @collective("scatter")
    @overloads(scatter_one)
    def scatter(
        self,
        output_tensors: Tensors,
        input_tensors: list[Tensors],
        opts: ScatterOptions | None = None,
    ) -> Any:
        options, sent = opts or ScatterOptions(), [_plain(parts) for parts in input_tensors]
        return self._fill(
            output_tensors,
            lambda inner, plain: inner.scatter(plain, sent, options),
            output_tensors[0].device,
            options.asyncOp,
        )

    @collective("gather")
    @overloads(gather_one)
    def gather(
        self,
        output_tensors: list[Tensors],
        input_tensors: Tensors,
        opts: GatherOptions | None = None,
    ) -> Any:
        options, sent = opts or GatherOptions(), _plain(input_tensors)

        def start(inner: Any, plain: Tensors) -> Any:
            return inner.gather([plain] if output_tensors else [], sent, options)

        outputs = output_tensors[0] if output_tensors else []  # none but on the root
        return self._fill(outputs, start, input_tensors[0].device, options.asyncOp)

    @collective("all_to_all")
    @overloads(alltoall_within)
    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: AllToAllOptions | None = None
    ) -> Any:
        options, sent = opts or AllToAllOptions(), _plain(input_tensors)
        return self._fill(
            output_tensors,
            lambda inner, plain: inner.alltoall(plain, sent, options),
            input_tensors[0].device,
            options.asyncOp,
        )

    @collective("all_to_all")
    @overloads(all_to_all_single_within)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: AllToAllOptions | None = None,
    ) -> Any:
        options, (sent,) = opts or AllToAllOptions(), _plain([input])
        splits = (output_split_sizes, input_split_sizes)
        return self._fill(
            [output],
            lambda inner, plain: inner.alltoall_base(*plain, sent, *splits, options),
            input.device,
            options.asyncOp,
        )

    alltoall_base = all_to_all_single

    def _fill(
        self,
        outputs: Tensors,
        start: Callable[[Any, Tensors], Any],
        device: torch.device,
        asynchronous: bool = True,
    ) -> Any:
        """Start a call of the device's inner group that writes to ``outputs``.

        Waits for a synchronous call. The start of such a call ends the group if an interrupt came
        before it, so the inner group is looked up after the start.

        Outputs that the inner group cannot write to receive their values through contiguous copies.
        """
        own = [with_memory(tensor) for tensor in outputs]
        plain = _plain(own)
        apart = [pair for pair in zip(own, plain, strict=True) if pair[0] is not pair[1]]
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

        def finish(work: Any) -> None:
            with torch.inference_mode(), torch.cuda.stream(stream):
                work.wait()
                for output, values in apart:
                    output.detach().copy_(values)

        if not asynchronous:
            return self._calls.wait_here(
                lambda: finish(start(self._inner.find(device), plain)), outputs
            )
        work = start(self._inner.find(device), plain)
        if not apart:
            return work
        waiting: Any = self._calls.start_waiting(partial(finish, work), outputs)
        waiting._source_rank = work._source_rank  # torch reads it after a receive from any rank
        return waiting


def _plain(tensors: Tensors) -> Tensors:
    """Contiguous tensors whose memory holds their values. Gloo ignores strides."""
    return [resolved(with_memory(tensor)).contiguous() for tensor in tensors]
