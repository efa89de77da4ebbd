"""Top-k with error feedback: sends the largest entries of each bucket and keeps the others.

A rank adds its gradients to the residuals, sends the largest sums as (index, value) pairs, and
keeps all other sums and the rounding errors of the sent values as new residuals. All ranks add all
pairs in rank order and divide by the number of ranks, so all ranks have the same bits.
"""

# No "from __future__ import annotations": DDP compares the hook's annotations with real classes.
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from reducer_client.group import Group, OnDone
from reducer_client.torch.hook.ddp import (
    ReductionState,
    TensorFuture,
    all_reduce_hook,
    exchange,
    take,
)
from reducer_client.torch.hook.residuals import Residuals
from reducer_client.torch.hook.sparsification import Pairs, largest, narrow
from reducer_client.work import Timeout

__all__ = ["TopKState", "attach_topk", "topk_hook"]

ValueDtype = Literal["float32", "float16", "bfloat16"]
_VALUE_DTYPES = get_args(ValueDtype)


class TopKState(ReductionState):
    """State of ``topk_hook`` for one DDP module on this rank.

    Save ``state_dict`` of every rank in each checkpoint. Without it, small gradients of up to ``1 /
    ratio`` steps are lost.

    Args:
        model: the module, whose parameter names identify the residuals. They take as much memory as
            its gradients in float32.
        group: the joined group that gathers the pairs.
        ratio: fraction of a bucket's entries that are sent, at least one entry.
        value_dtype: dtype in which values are sent. Rounding errors are kept as residuals. An index
            takes 4 bytes (8 in a bucket of more than 2^31 entries).
        start_iter: number of iterations at the start in which whole gradients are sent.
        timeout, process_group, prefix: as for ``ReductionState``.

    Raises:
        ValueError: ``ratio`` or ``value_dtype`` is invalid.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        group: Group,
        *,
        ratio: float = 0.01,
        value_dtype: ValueDtype = "float32",
        start_iter: int = 0,
        timeout: Timeout | None = None,
        process_group: dist.ProcessGroup | None = None,
        prefix: str | None = None,
    ) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio={ratio}: expected a fraction above 0 and up to 1")
        if value_dtype not in _VALUE_DTYPES:
            raise ValueError(f"value_dtype={value_dtype!r}: expected {', '.join(_VALUE_DTYPES)}")
        super().__init__(group, timeout=timeout, process_group=process_group, prefix=prefix)
        self.ratio = ratio
        self.value_dtype = value_dtype
        self.start_iter = start_iter
        self.iteration = 0
        self.residuals = Residuals(model.module)

    def state_dict(self) -> dict[str, Any]:
        """The iteration, and the residuals of this rank by parameter name."""
        return {"iteration": self.iteration, "residuals": self.residuals.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load a ``state_dict``. Raises ValueError if it belongs to another model."""
        self.residuals.load_state_dict(saved["residuals"])
        self.iteration = saved["iteration"]

    def pairs(self, entries: int) -> Pairs:
        """The layout of the pairs of a bucket with this number of entries."""
        count = max(1, round(entries * self.ratio))
        index_dtype = torch.int32 if entries <= 1 << 31 else torch.int64
        return Pairs(count, index_dtype, getattr(torch, self.value_dtype))

    def gather(self, rows: torch.Tensor, bucket: int, on_done: OnDone) -> None:
        """Start to gather the rows of all ranks, in place.

        ``rows`` has shape (world size, bytes of one row) and dtype uint8. The row of this rank is
        its input.
        """
        group = self.joined_group()
        self.bytes_on_wire += rows.numel()  # sends one row, receives the others
        array = rows.numpy()
        group.all_gather(
            array[group.rank],
            key=f"{self.prefix}/topk{bucket}",
            out=array,
            on_done=on_done,
            timeout=self.timeout,
        )


def topk_hook(
    state: TopKState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # only defined if torch has c10d
) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean of each bucket's largest entries; all others are zero.

    If a bucket has NaN or Inf on any rank, all ranks get NaN or Inf and keep their residuals. Skip
    such a step, as ``GradScaler`` does.
    """
    whole = state.iteration < state.start_iter
    state.iteration += bucket.is_last()
    return all_reduce_hook(state, bucket) if whole else _reduce_largest(state, bucket)


def attach_topk(
    model: DistributedDataParallel,
    group: Group,
    *,
    ratio: float = 0.01,
    value_dtype: ValueDtype = "float32",
    start_iter: int = 0,
    timeout: Timeout | None = None,
    prefix: str | None = None,
) -> TopKState:
    """Send the largest gradients of a DDP module through the group.

    All ranks call this in the same order. ``TopKState`` describes the arguments.

    Returns:
        The state of the hook.

    Raises:
        TypeError: ``model`` is not a DistributedDataParallel module.
        ValueError: ``ratio`` or ``value_dtype`` is invalid.
        RuntimeError: the module has a hook already.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"expected a DistributedDataParallel module, got {type(model).__name__}")
    state = TopKState(
        model,
        group,
        ratio=ratio,
        value_dtype=value_dtype,
        start_iter=start_iter,
        timeout=timeout,
        process_group=model.process_group,
        prefix=prefix,
    )
    model.register_comm_hook(state, topk_hook)
    return state


def _reduce_largest(state: TopKState, bucket: Any) -> TensorFuture:
    buffer = take(state, bucket)
    group, index = state.joined_group(), bucket.index()
    residual = state.residuals.row(bucket.parameters())
    total = residual + buffer
    pairs = state.pairs(len(total))
    indices = largest(total, pairs.count)
    rows = torch.empty(group.world_size, pairs.nbytes, dtype=torch.uint8, device=total.device)
    pairs.write(rows[group.rank], indices, narrow(total[indices], pairs.value_dtype))

    def add_all(gathered: TensorFuture) -> torch.Tensor:
        received = [pairs.read(row) for row in gathered.value()]
        if all(bool(values.isfinite().all()) for _, values in received):
            where, sent = received[group.rank]
            residual.copy_(total.index_add_(0, where, sent.to(total.dtype), alpha=-1))
        total.zero_()
        for where, values in received:
            total.index_add_(0, where, values.to(total.dtype))
        buffer.copy_(total.div_(len(received)))
        if total.is_cuda:  # allocated on another stream, which may reuse its memory
            total.record_stream(torch.cuda.current_stream(total.device))
        return buffer

    gathered = exchange(
        state,
        rows,
        lambda host, on_done: state.gather(host.view(rows.shape), index, on_done),
    )
    return gathered.then(add_all)
