"""How a process group reduces tensors: on the reducers alone, or in a hierarchy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, WireDtype
from reducer_client.group import Group
from reducer_client.torch.calls.group_calls import GroupCalls
from reducer_client.torch.calls.key_scopes import main_prefix
from reducer_client.torch.calls.works import CallWork, Handle
from reducer_client.torch.hierarchy.hierarchy import Hierarchy
from reducer_client.torch.staging.transfer import Way
from reducer_client.torch.tensors.host import (
    carried_dtype,
    check_reducible,
    reducible,
    scaled,
)
from reducer_client.torch.tensors.packing import Packing

# Smaller sums and means are sent as float32. Counts, losses and norms need every digit, and take
# one round trip in any dtype. DDP closes its first bucket at 1 MiB; its other buckets are larger.
LEAST_NARROWED_BYTES = 1 << 20
_NARROWED_OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)


class FlatReduction:
    """Sends the whole arrays of every rank to the reducers."""

    def __init__(self, calls: GroupCalls, wire_dtype: WireDtype | None) -> None:
        self._calls = calls
        self._wire_dtype = wire_dtype

    def all_reduce(self, tensors: Sequence[torch.Tensor], options: Any) -> CallWork:
        """Reduce tensors of one dtype over all ranks, in place, in one round."""
        packing, op = Packing(tensors), options.reduceOp
        check_reducible(packing.dtype, op)

        def submit(source: torch.Tensor, target: torch.Tensor, **call: Any) -> Handle:
            given = scaled(source, op)  # a refused call leaves the caller's tensor as it was
            what = reducible(given, op)
            return self._submit(
                what.array,
                what.op,
                out=what.array if given is target else reducible(target, op).array,
                wire_dtype=narrow(source.dtype, source.nbytes, op, self._wire_dtype),
                dtype=what.dtype,
                **call,
            )

        way = self._way(packing, op)
        return self._calls.start(submit, packing, packing, tensors, options, way)

    def _way(self, packing: Packing, op: Any) -> Way:
        """How the values of tensors on a device go to the host and back."""
        # A single rank copies at once and rounds nothing. PREMUL_SUM multiplies on the host.
        if not isinstance(self._calls.group, Group) or op.op == dist.ReduceOp.PREMUL_SUM:
            return Way()
        wire_dtype = narrow(packing.dtype, packing.nbytes, op, self._wire_dtype)
        carried = carried_dtype(packing.dtype, wire_dtype)
        return Way(carried, sliced=True, by_stream=self._calls.waits_by_stream)

    def close(self) -> None:
        """Leave the groups that this object has joined: none."""

    def abort(self) -> None:
        """Leave these groups at once; the other ranks fail."""

    def _submit(self, array: Array, op: Op, *, key: str, **call: Any) -> Handle:
        return self._calls.group.all_reduce(array, op, key=key, **call)


class HierarchicalReduction(FlatReduction):
    """Sums among the ranks of a host first; each rank then sends its shard to the reducers."""

    def __init__(
        self, calls: GroupCalls, wire_dtype: WireDtype | None, hierarchy: Hierarchy
    ) -> None:
        super().__init__(calls, wire_dtype)
        self.hierarchy = hierarchy
        calls.also_ended.append(hierarchy.abort)
        self._prefix = main_prefix("cuda" if hierarchy.layout.cuda else "cpu")

    def _way(self, packing: Packing, op: Any) -> Way:
        return Way()  # the ranks of a host sum whole arrays first

    def close(self) -> None:
        self.hierarchy.close()

    def abort(self) -> None:
        self.hierarchy.abort()

    def _submit(self, array: Array, op: Op, *, key: str, **call: Any) -> Handle:
        # The order of calls from callbacks, and of calls on the other kind of device, differs
        # between the ranks of a host. The hierarchy needs one order, so these calls are flat.
        if not key.startswith(f"{self._prefix}/"):
            return super()._submit(array, op, key=key, **call)
        return self.hierarchy.all_reduce(array, op, self._prefix, flat_key=key, **call)


def narrow(
    dtype: torch.dtype, nbytes: int, op: Any, wire_dtype: WireDtype | None
) -> WireDtype | None:
    """The dtype in which tensors are sent: only large sums and means of float32 are narrowed."""
    narrowed = dtype is torch.float32 and op.op in _NARROWED_OPS
    return wire_dtype if narrowed and nbytes >= LEAST_NARROWED_BYTES else None
