"""An all-reduce of a flat tensor, which may be on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from reducer_client.dtypes import Op, WireDtype
from reducer_client.group import Group
from reducer_client.parts import Parts
from reducer_client.torch.staging.staging import Staging
from reducer_client.torch.staging.transfer import Way
from reducer_client.torch.tensors.host import carried_dtype, summable
from reducer_client.torch.tensors.packing import Packing
from reducer_client.work import Timeout, Work


class Reduction:
    """An all-reduce from a flat tensor into another one, or in place.

    ``timeout`` counts from the call on if the tensors are on a CUDA device.

    Attributes:
        work: the work of the group, from a time before `wait` returns.
    """

    def __init__(
        self,
        group: Group,
        key: str,
        wire_dtype: WireDtype | None,
        op: Op = "sum",
        timeout: Timeout | None = None,
    ) -> None:
        self._group = group
        self._key = key
        self._wire_dtype = wire_dtype
        self._op: Op = op
        self._timeout = timeout
        self._waitable: Any = None  # the work, or the transfer around it
        self.work: Work[Any] | None = None

    def start(
        self, source: torch.Tensor, target: torch.Tensor, staging: Staging | None
    ) -> Reduction:
        """Start it. ``staging`` copies the tensors to the host and back; None on the CPU."""
        if staging is None:
            self._waitable = self._submit(source, target)
            return self
        read = Packing([source])
        write = read if source is target else Packing([target])
        way = Way(carried_dtype(source.dtype, self._wire_dtype), sliced=source is target)
        self._waitable = staging.start(read, write, self._submit, lambda transfer: None, way)
        return self

    def wait(self, timeout: Timeout | None = None) -> None:
        """Raises ReducerErrors. On CUDA, the current stream waits for the copy of the result."""
        self._waitable.wait(timeout)

    def _submit(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        on_done: Callable[[Work[Any]], None] | None = None,
        parts: Parts | None = None,
    ) -> Work[Any]:
        def done(work: Work[Any]) -> None:
            self.work = work  # `wait` may return before all_reduce does on the stager thread
            if on_done is not None:
                on_done(work)

        array, dtype = summable(source)
        self.work = self._group.all_reduce(
            array, self._op, key=self._key,
            out=array if source is target else summable(target)[0],
            wire_dtype=self._wire_dtype if source.dtype is torch.float32 else None, dtype=dtype,
            parts=parts, on_done=None if on_done is None else done, timeout=self._timeout,
        )  # fmt: skip
        return self.work
