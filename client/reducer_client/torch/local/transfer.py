"""A mean over all ranks that is under way while the model goes on."""

from __future__ import annotations

from typing import Any

import torch

from reducer_client.dtypes import WireDtype
from reducer_client.errors import NumericError
from reducer_client.group import Group, wait_all_or_end
from reducer_client.torch.staging.reduction import Reduction
from reducer_client.torch.staging.staging import Stagings
from reducer_client.work import Timeout, Work


class Link:
    """The way of flat tensors to a group and back. CUDA tensors go through pinned host memory.

    Args:
        wire_dtype: how float32 is sent.
        timeout: for each wait, and on CUDA from the call on; by default the group's.
    """

    def __init__(self, group: Group, wire_dtype: WireDtype | None, timeout: Timeout | None) -> None:
        self.group = group
        self.wire_dtype = wire_dtype
        self.timeout = timeout
        self.stagings = Stagings()


class Transfer:
    """The mean of a flat tensor, in place. Nobody else may use the tensor until `wait` returns.

    Args:
        narrows: whether float32 is sent in the link's wire dtype, which may round the values.
    """

    def __init__(self, link: Link, key: str, flat: torch.Tensor, narrows: bool = True) -> None:
        self._link = link
        self._key = key
        self._flat = flat
        self._reduction: Reduction | None = None
        staging = link.stagings.of(flat.device)
        if not flat.numel():  # a shard may be empty
            return
        narrow = link.wire_dtype if narrows and flat.dtype is torch.float32 else None
        self._reduction = Reduction(link.group, key, narrow, "mean", link.timeout)
        self._reduction.start(flat, flat, staging)

    def wait(self) -> torch.Tensor:
        """The mean. On CUDA, the current stream waits for the copy to the device.

        Raises:
            NumericError: a rank sent NaN or Inf, or the mean has one. All ranks raise this error.
            ReducerError: another subclass. After a timeout the group has ended.
        """
        reduction = self._reduction
        if reduction is None:
            return self._flat
        waitable: Any = reduction
        wait_all_or_end(self._link.group, lambda: [waitable], self._link.timeout)
        if reduction.work is not None and reduction.work.nonfinite:
            raise _nonfinite(self._key, reduction.work)
        return self._flat


class Finished:
    """A transfer whose mean is here: it came with a state."""

    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def wait(self) -> torch.Tensor:
        return self._flat


def _nonfinite(key: str, work: Work[Any]) -> NumericError:
    rank = work.nonfinite_rank
    who = "the ranks' sum exceeds the dtype" if rank is None else f"rank {rank} sent NaN or Inf"
    return NumericError(
        f"{who} as {key!r}, round {work.round}: the outer parameters are unchanged; load a "
        "checkpoint on all ranks, and train with a smaller learning rate or clipped gradients",
        rank=rank,
        key=key,
        round=work.round,
        reason="nonfinite",
    )
