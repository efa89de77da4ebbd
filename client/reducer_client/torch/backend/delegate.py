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
        return self._inner_of(tensors)().send(_plain(tensors), dstRank, tag)

    @collective("recv")
    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> Any:  # noqa: N803
        inner = self._inner_of(tensors)
        return self._fill(tensors, lambda plain: inner().recv(plain, srcRank, tag))

    @collective("recv_anysource")
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        inner = self._inner_of(tensors)
        return self._fill(tensors, lambda plain: inner().recv_anysource(plain, tag))

    @collective("scatter")
    @overloads(scatter_one)
    def scatter(
        self,
        output_tensors: Tensors,
        input_tensors: list[Tensors],
        opts: ScatterOptions | None = None,
    ) -> Any:
        options, inner = opts or ScatterOptions(), self._inner_of(output_tensors)
        sent = [_plain(parts) for parts in input_tensors]
        return self._fill(
            output_tensors, lambda plain: inner().scatter(plain, sent, options), options.asyncOp
        )

    @collective("gather")
    @overloads(gather_one)
    def gather(
        self,
        output_tensors: list[Tensors],
        input_tensors: Tensors,
        opts: GatherOptions | None = None,
    ) -> Any:
        options = opts or GatherOptions()
        inner, sent = self._inner_of(input_tensors), _plain(input_tensors)

        def start(plain: Tensors) -> Any:
            return inner().gather([plain] if output_tensors else [], sent, options)

        outputs = output_tensors[0] if output_tensors else []  # none but on the root
        return self._fill(outputs, start, options.asyncOp)

    @collective("all_to_all")
    @overloads(alltoall_within)
    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: AllToAllOptions | None = None
    ) -> Any:
        options = opts or AllToAllOptions()
        inner, sent = self._inner_of(input_tensors), _plain(input_tensors)
        return self._fill(
            output_tensors, lambda plain: inner().alltoall(plain, sent, options), options.asyncOp
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
        options = opts or AllToAllOptions()
        inner, (sent,) = self._inner_of([input]), _plain([input])
        splits = (output_split_sizes, input_split_sizes)
        return self._fill(
            [output],
            lambda plain: inner().alltoall_base(*plain, sent, *splits, options),
            options.asyncOp,
        )

    alltoall_base = all_to_all_single

    def _inner_of(self, tensors: Tensors) -> Callable[[], Any]:
        """A function that finds the inner group for tensors, to be called when the call starts.

        The group may end at the start of a synchronous call, because of an earlier interrupt.
        """
        return partial(self._inner.find, tensors[0].device)

    def _fill(
        self, outputs: Tensors, start: Callable[[Tensors], Any], asynchronous: bool = True
    ) -> Any:
        """Start a call of an inner group that writes to ``outputs``. Wait for a synchronous one.

        Outputs that the inner group cannot write to receive their values through contiguous copies.
        """
        own = [with_memory(tensor) for tensor in outputs]
        plain = _plain(own)
        apart = [pair for pair in zip(own, plain, strict=True) if pair[0] is not pair[1]]
        cuda = bool(own) and own[0].is_cuda
        stream = torch.cuda.current_stream(own[0].device) if cuda else None

        def finish(work: Any) -> None:
            with torch.inference_mode(), torch.cuda.stream(stream):
                work.wait()
                for output, values in apart:
                    output.detach().copy_(values)

        if not asynchronous:
            return self._calls.wait_here(lambda: finish(start(plain)), outputs)
        work = start(plain)
        if not apart:
            return work
        waiting: Any = self._calls.start_waiting(partial(finish, work), outputs)
        waiting._source_rank = work._source_rank  # torch reads it after a receive from any rank
        return waiting


def _plain(tensors: Tensors) -> Tensors:
    """Contiguous tensors whose memory holds their values. Gloo ignores strides."""
    return [resolved(with_memory(tensor)).contiguous() for tensor in tensors]
