"""The operations on NumPy arrays; the layers of frameworks are made of these.

Every ``*_async`` call returns a handle for ``poll`` and ``synchronize``; until it is done, the
arrays that were passed in must not be changed. Ranks may make the calls of a process set in any
order. Calls without a name are matched by their count: the n-th such call of a kind on one rank
belongs to the n-th of this kind on every other rank.

What fails on all ranks of the set, such as shapes that differ, raises HorovodInternalError where a
handle is waited for. An argument that this rank alone can see to be wrong raises ValueError or
TypeError at once. Nothing is announced then, so the other ranks wait for this rank's call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reducer_client.arrays import Array, as_array, check_movable
from reducer_client.dtypes import check_wire_dtype, find_reduction
from reducer_client.horovod import context
from reducer_client.horovod.controller import Controller
from reducer_client.horovod.execution import OPS
from reducer_client.horovod.handles import GroupHandle, Handle, OperationHandle, poll
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, Kind, ReduceOp, Request, Sum
from reducer_client.horovod.scaling import check_scalable
from reducer_client.horovod.submissions import Submission
from reducer_client.horovod.synchronous import ends_on_interrupt, synchronize, synchronous
from reducer_client.quantized import BlocksName

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]


def allreduce_async(
    array: object,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    out: Array | None = None,
    dtype: str | None = None,
    wire_dtype: BlocksName | None = None,
) -> Handle[Array]:
    """Start an all-reduce of an array over the ranks of the process set.

    ``synchronize`` returns the reduced array for the handle.

    Args:
        out: array of the same shape and dtype for the result; ``array`` itself reduces in place.
        dtype: the dtype of ``array`` if its elements are bits in integers: ``"bfloat16"`` for
            16-bit integers, ``"float8_e4m3fn"`` or ``"float8_e5m2"`` for 8-bit integers.
        wire_dtype: the quantised dtype in which float32 is sent for Average and Sum; see
            ``Group.all_reduce``. All other arrays and operations are sent as they are.
    """
    options = (op, name, prescale_factor, postscale_factor, process_set, dtype, wire_dtype)
    return _reduce(Kind.ALLREDUCE, [array], *options, None if out is None else [out])[0]


def grouped_allreduce_async(
    arrays: Sequence[object],
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    outs: Sequence[Array] | None = None,
    dtype: str | None = None,
    wire_dtype: BlocksName | None = None,
) -> GroupHandle:
    """Start to reduce several arrays, which are announced together, so that they can be fused.

    ``synchronize`` returns a list with the result of each array.
    """
    options = (op, name, prescale_factor, postscale_factor, process_set, dtype, wire_dtype)
    return GroupHandle(_reduce(Kind.ALLREDUCE, arrays, *options, outs, grouped=True))


def reducescatter_async(
    array: object,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    dtype: str | None = None,
    wire_dtype: BlocksName | None = None,
) -> Handle[Array]:
    """Start to reduce an array; the value is this rank's rows of the result.

    With n rows and s ranks, the first n % s ranks get one row more than the others.
    """
    options = (op, name, prescale_factor, postscale_factor, process_set, dtype, wire_dtype)
    return _reduce(Kind.REDUCESCATTER, [array], *options)[0]


def grouped_reducescatter_async(
    arrays: Sequence[object],
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    dtype: str | None = None,
    wire_dtype: BlocksName | None = None,
) -> GroupHandle:
    """``reducescatter_async`` of several arrays; ``synchronize`` returns a list of results."""
    options = (op, name, prescale_factor, postscale_factor, process_set, dtype, wire_dtype)
    return GroupHandle(_reduce(Kind.REDUCESCATTER, arrays, *options, grouped=True))


def allgather_async(
    array: object,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    dtype: str | None = None,
) -> Handle[Array]:
    """Start to concatenate the arrays of all ranks along their first axis, in rank order.

    Ranks may have different numbers of rows. The array may have any dtype without Python objects.
    All ranks must pass the same ``dtype``, by default the name of the array's dtype.
    """
    return _gather([array], name, process_set, dtype)[0]


def grouped_allgather_async(
    arrays: Sequence[object],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    dtype: str | None = None,
) -> GroupHandle:
    """``allgather_async`` of several arrays; ``synchronize`` returns a list of results."""
    return GroupHandle(_gather(arrays, name, process_set, dtype, grouped=True))


def broadcast_async(
    array: object,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    out: Array | None = None,
    dtype: str | None = None,
) -> Handle[Array]:
    """Start to send the array of the global rank ``root_rank`` to all ranks of the set.

    ``out`` is as for ``allreduce_async``, ``dtype`` as for ``allgather_async``.
    """
    controller = _controller(process_set)
    if root_rank not in controller.ranks:
        raise ValueError(f"root_rank={root_rank}: expected one of {list(controller.ranks)}")
    call = Request("", Kind.BROADCAST, dtype or "", root=controller.ranks.index(root_rank))
    return _start(
        controller, call, [_checked_movable(array)], name, None if out is None else [out]
    )[0]


def alltoall_async(
    array: object,
    splits: object | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    dtype: str | None = None,
) -> Handle[tuple[Array, Array]]:
    """Start to send rows to each rank.

    ``synchronize`` returns two arrays: the rows received, ordered by the rank that sent them, and
    how many rows each rank sent.

    Every rank gets all rows of all ranks and keeps its own: a rank receives as many bytes as all
    ranks send, and not only those that are for it.

    Args:
        splits: how many rows go to each rank, integers whose sum is the number of rows. By default
            equal parts.
        dtype: as for ``allgather_async``.
    """
    controller = _controller(process_set)
    source = _rows(_checked_movable(array))
    checked = _checked_splits(splits, source.shape[0], len(controller.ranks))
    call = Request("", Kind.ALLTOALL, dtype or "", numbers=checked)
    return _start(controller, call, [source], name)[0]


allreduce = synchronous(allreduce_async)
allgather = synchronous(allgather_async)
broadcast = synchronous(broadcast_async)
alltoall = synchronous(alltoall_async)
reducescatter = synchronous(reducescatter_async)


@ends_on_interrupt
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the set has called ``barrier`` or has joined."""
    _announce(process_set, Kind.BARRIER).wait()


@ends_on_interrupt
def join() -> int:
    """Say that this rank has no more data, and wait until all ranks have called ``join``.

    Until then this rank contributes zeros to the other ranks' allreduces with Sum or Average; an
    average is still over all ranks of the global set. Other operations of the other ranks raise
    HorovodInternalError.

    Returns:
        The rank that joined last.
    """
    last: int = _announce(global_process_set, Kind.JOIN).wait()
    return last


def _announce(process_set: ProcessSet, kind: Kind) -> OperationHandle:
    """Announce a call without data and without a name."""
    controller = _controller(process_set)
    return controller.named(
        kind, None, lambda own: context.announce(controller, Request(own, kind))
    )


def _reduce(
    kind: Kind,
    arrays: Sequence[object],
    op: ReduceOp,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    dtype: str | None,
    wire_dtype: BlocksName | None,
    outs: Sequence[Array] | None = None,
    *,
    grouped: bool = False,
) -> list[OperationHandle]:
    controller = _controller(process_set)
    check_wire_dtype(wire_dtype)
    if op not in OPS:
        raise NotImplementedError(f"op={op!r}: expected Average, Sum, Min, Max or Product")
    scales = (float(prescale), float(postscale))
    wire = wire_dtype or "" if op in (Average, Sum) else ""
    call = Request(
        "", kind, dtype or "", op=ReduceOp(op), prescale=scales[0], postscale=scales[1], wire=wire
    )
    sources = [as_array(value) for value in arrays]
    for source in sources:
        find_reduction(OPS[op], source.dtype, dtype)
        if kind is Kind.REDUCESCATTER:
            _rows(source)
        if scales != (1.0, 1.0):
            check_scalable(dtype or source.dtype.name)
    return _start(controller, call, sources, name, outs, grouped=grouped)


def _gather(
    arrays: Sequence[object],
    name: str | None,
    process_set: ProcessSet,
    dtype: str | None,
    *,
    grouped: bool = False,
) -> list[OperationHandle]:
    controller = _controller(process_set)
    sources = [_rows(_checked_movable(value)) for value in arrays]
    call = Request("", Kind.ALLGATHER, dtype or "")
    return _start(controller, call, sources, name, grouped=grouped)


def _controller(process_set: ProcessSet) -> Controller:
    return context.current().sets.controller(process_set.process_set_id)


def _start(
    controller: Controller,
    call: Request,
    sources: Sequence[Array],
    name: str | None,
    outs: Sequence[Array] | None = None,
    *,
    grouped: bool = False,
) -> list[OperationHandle]:
    """Announce the arrays together. In a grouped call the name of array i of n ends in ``_iofn``.

    Args:
        call: the fields that the requests of all arrays have in common. An empty ``dtype`` is the
            dtype of each array.
    """
    targets = _checked_outs(outs, sources)

    def submit(base: str) -> list[OperationHandle]:
        submissions = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
            own = f"{base}_{number}of{len(sources)}" if grouped else base
            dtype = call.dtype or source.dtype.name
            request = replace(
                call, name=own, dtype=dtype, itemsize=source.itemsize, shape=source.shape,
                wire=call.wire if dtype == "float32" else "",
            )  # fmt: skip
            submissions.append(Submission(request, controller.handle(own), source, target))
        controller.submit(submissions)
        return [submission.handle for submission in submissions]

    return controller.named(call.kind, name, submit)


def _checked_movable(value: object) -> Array:
    array = as_array(value)
    check_movable(array.dtype)
    return array


def _rows(array: Array) -> Array:
    if array.ndim == 0:
        raise ValueError("a scalar has no rows: expected an array with at least one axis")
    return array


def _checked_outs(outs: Sequence[Array] | None, sources: Sequence[Array]) -> Sequence[Array | None]:
    if outs is None:
        return [None] * len(sources)
    targets = list(outs)
    for out, like in zip(targets, sources, strict=True):
        if out.shape != like.shape or out.dtype != like.dtype or not out.flags.writeable:
            raise ValueError(
                f"out: expected a writable array of shape {like.shape} of {like.dtype}, got shape "
                f"{out.shape} of {out.dtype}"
            )
    return targets


def _checked_splits(splits: object | None, rows: int, size: int) -> tuple[int, ...]:
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall of {rows} rows without splits: expected a multiple of {size} ranks"
            )
        return (rows // size,) * size
    given: np.ndarray[Any, Any] = np.asarray(splits)
    if given.dtype.kind not in "iu" or given.shape != (size,):
        raise ValueError(
            f"splits of shape {given.shape} of {given.dtype}: expected {size} integers, the rows "
            "for each rank"
        )
    if (given < 0).any() or int(given.sum()) != rows:
        raise ValueError(
            f"splits {given.tolist()}: expected numbers that sum to {rows}, the array's rows"
        )
    return tuple(int(n) for n in given)
