"""Runs the negotiated operations: fusion buffers, rounds of a group, results.

All ranks of the set run the same responses in the same order, so a number identifies a response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from reducer_client.arrays import Array, flat_bytes
from reducer_client.dtypes import Op, WireDtype
from reducer_client.horovod.gathering import AnyGroup, AnyWork, gather_bytes
from reducer_client.horovod.negotiation import Response
from reducer_client.horovod.requests import Kind, ReduceOp, Request
from reducer_client.horovod.scaling import is_stored, scale_into, stored_dtype
from reducer_client.horovod.submissions import Submission
from reducer_client.horovod.timeline import Timeline

OPS: dict[ReduceOp, Op] = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVERAGE: "mean",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PRODUCT: "prod",
}
# Number of keys in rotation. More keys would not balance the reducers better, and reducers remember
# every key.
_KEYS = 16

Results = list[tuple[Submission, Any]]
# One per tensor of a response; None if this rank has joined and contributes zeros.
Submissions = Sequence[Submission | None]
# The works of a response, and a function that returns its values when they are done.
Started = tuple[list[AnyWork], Callable[[], Results]]


@dataclass(frozen=True)
class Running:
    """A response in progress. When its works are done, ``collect`` returns the values."""

    names: list[str]
    works: list[AnyWork]
    collect: Callable[[], Results]


class Executor:
    """Starts responses on a group. One thread may call it."""

    def __init__(self, group: AnyGroup, timeline: Timeline) -> None:
        self._group = group
        self._timeline = timeline
        self._started = 0
        self._starters = {
            Kind.ALLREDUCE: self._all_reduce,
            Kind.ALLGATHER: self._all_gather,
            Kind.BROADCAST: self._broadcast,
            Kind.ALLTOALL: self._all_to_all,
            Kind.REDUCESCATTER: self._reduce_scatter,
            Kind.BARRIER: self._barrier,
        }

    def start(self, response: Response, submissions: Submissions) -> Running:
        """Start a response. ``submissions`` are in the order of the response's tensors."""
        self._started += 1
        starter = self._starters[response.request.kind]
        works, collect = starter(response, submissions, f"data{self._started % _KEYS}")
        if works:
            self._timeline.enter(response.names, f"REDUCER_{response.request.kind.name}")
        return Running(response.names, works, collect)

    def _all_reduce(self, response: Response, submissions: Submissions, key: str) -> Started:
        request = response.request
        sole = submissions[0] if len(submissions) == 1 else None
        if sole is None:
            source, parts = self._pack(response, submissions)
            target = source
        else:
            source, target = _prescaled(sole), sole.target()
            parts = [target]
        declared = request.dtype if is_stored(request.dtype) else None
        work = self._group.all_reduce(
            source, OPS[request.op], key=key, out=target, wire_dtype=_wire(request), dtype=declared
        )

        def collect() -> Results:
            if len(parts) > 1:
                self._timeline.enter(response.names, "MEMCPY_OUT_FUSION_BUFFER")
            found = zip(submissions, parts, strict=True)
            return [(s, _postscaled(s, part)) for s, part in found if s is not None]

        return [work], collect

    def _pack(self, response: Response, submissions: Submissions) -> tuple[Array, list[Array]]:
        """A new fusion buffer that holds the prescaled sources, and views of the tensors' parts."""
        self._timeline.enter(response.names, "MEMCPY_IN_FUSION_BUFFER")
        requests = [tensor.request for tensor in response.tensors]
        fused = np.empty(sum(r.count for r in requests), stored_dtype(requests[0].dtype))
        parts = []
        start = 0
        for request, submission in zip(requests, submissions, strict=True):
            part = fused[start : start + request.count].reshape(request.shape)
            start += request.count
            if submission is None:
                part.fill(0)
            else:
                scale_into(part, submission.stored, request.prescale, request.dtype)
            parts.append(part)
        return fused, parts

    def _broadcast(self, response: Response, submissions: Submissions, key: str) -> Started:
        root = response.request.root
        mine = _present(submissions)
        if len(mine) == 1:
            target = _broadcast_target(mine[0])
            work = self._group.broadcast(mine[0].source, root, key=key, out=target)
            return [work], lambda: [(mine[0], mine[0].result(target))]
        self._timeline.enter(response.names, "MEMCPY_IN_FUSION_BUFFER")
        if root == self._group.rank:
            fused = _joined_bytes(mine)
        else:
            fused = np.empty(sum(s.request.nbytes for s in mine), np.uint8)
        work = self._group.broadcast(fused, root, key=key, out=fused)

        def collect() -> Results:
            self._timeline.enter(response.names, "MEMCPY_OUT_FUSION_BUFFER")
            results: Results = []
            start = 0
            for s in mine:
                part = fused[start : start + s.request.nbytes]
                start += part.size
                results.append((s, s.result(_of_bytes(part, s.source.shape, s.source.dtype))))
            return results

        return [work], collect

    def _all_gather(self, response: Response, submissions: Submissions, key: str) -> Started:
        mine = _present(submissions)
        ranks = range(self._group.world_size)
        if len(mine) > 1:
            self._timeline.enter(response.names, "MEMCPY_IN_FUSION_BUFFER")
        sizes = [[tensor.by_rank[rank].nbytes for rank in ranks] for tensor in response.tensors]
        lengths = [sum(of_rank) for of_rank in zip(*sizes, strict=True)]
        works, gathered = gather_bytes(self._group, _joined_bytes(mine), lengths, key)

        def collect() -> Results:
            if len(mine) > 1:
                self._timeline.enter(response.names, "MEMCPY_OUT_FUSION_BUFFER")
            blobs = gathered()
            starts = [0] * len(blobs)
            results: Results = []
            for s, of_ranks in zip(mine, sizes, strict=True):
                parts = [
                    blobs[rank][starts[rank] : starts[rank] + of_ranks[rank]] for rank in ranks
                ]
                starts = [start + size for start, size in zip(starts, of_ranks, strict=True)]
                results.append((s, _rows(parts, s)))
            return results

        return works, collect

    def _all_to_all(self, response: Response, submissions: Submissions, key: str) -> Started:
        (mine,) = _present(submissions)
        by_rank = response.tensors[0].by_rank
        requests = [by_rank[rank] for rank in range(self._group.world_size)]
        lengths = [request.nbytes for request in requests]
        works, gathered = gather_bytes(self._group, _joined_bytes([mine]), lengths, key)
        me, row = self._group.rank, mine.request.row_bytes

        def collect() -> Results:
            parts = []
            for request, blob in zip(requests, gathered(), strict=True):
                start = sum(request.numbers[:me]) * row
                parts.append(blob[start : start + request.numbers[me] * row])
            received = np.array([request.numbers[me] for request in requests], np.int32)
            return [(mine, (_rows(parts, mine), received))]

        return works, collect

    def _reduce_scatter(self, response: Response, submissions: Submissions, key: str) -> Started:
        (mine,) = _present(submissions)
        request, size = mine.request, self._group.world_size
        rows = split_rows(request.shape[0], size)
        source = _padded_parts(_prescaled(mine), rows)
        target = np.empty((rows[0], *request.shape[1:]), source.dtype)
        work = self._group.reduce_scatter(
            source,
            OPS[request.op],
            key=key,
            out=target,
            wire_dtype=_wire(request),
            dtype=request.dtype if is_stored(request.dtype) else None,
        )
        return [work], lambda: [(mine, _postscaled(mine, target[: rows[self._group.rank]]))]

    def _barrier(self, response: Response, submissions: Submissions, key: str) -> Started:
        """Finish at once: the barrier is complete when all ranks have announced it."""
        return [], lambda: [(s, None) for s in _present(submissions)]


def _wire(request: Request) -> WireDtype | None:
    return cast(WireDtype, request.wire) if request.wire else None


def split_rows(rows: int, size: int) -> list[int]:
    """The numbers of rows of the ranks' parts of a reducescatter. The first ranks get one more."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _present(submissions: Submissions) -> list[Submission]:
    return [s for s in submissions if s is not None]


def _prescaled(submission: Submission) -> Array:
    source, request = submission.stored, submission.request
    if request.prescale == 1.0:
        return source
    scaled = np.empty(source.shape, source.dtype)
    scale_into(scaled, source, request.prescale, request.dtype)
    return scaled


def _postscaled(submission: Submission, part: Array) -> Array:
    request = submission.request
    if request.postscale != 1.0:
        scale_into(part, part, request.postscale, request.dtype)
    if submission.out is None and part.base is not None:
        part = part.copy()  # a view would keep the whole fusion buffer alive
    return submission.result(part)


def _padded_parts(source: Array, rows: list[int]) -> Array:
    """The ranks' parts, all padded to the number of rows of the first part."""
    if rows[0] == rows[-1]:
        return source
    padded = np.zeros((len(rows), rows[0], *source.shape[1:]), source.dtype)
    start = 0
    for rank, count in enumerate(rows):
        padded[rank, :count] = source[start : start + count]
        start += count
    return padded.reshape(-1, *source.shape[1:])


def _broadcast_target(submission: Submission) -> Array:
    """The array that receives a broadcast: ``out`` if possible, else a new array of its dtype."""
    out = submission.out
    if out is not None and out.flags.c_contiguous and out.flags.aligned:
        return out
    return np.empty(submission.source.shape, submission.source.dtype)


def _joined_bytes(submissions: Sequence[Submission]) -> Array:
    flat = [np.frombuffer(flat_bytes(s.source), np.uint8) for s in submissions]
    return flat[0] if len(flat) == 1 else np.concatenate(flat)


def _rows(parts: Sequence[Array], like: Submission) -> Array:
    """The rows of all ranks in one array, in the order of the ranks."""
    return _of_bytes(np.concatenate(parts), (-1, *like.source.shape[1:]), like.source.dtype)


def _of_bytes(flat: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if flat.size == 0:
        return np.empty([max(0, n) for n in shape], dtype)
    if flat.ctypes.data % dtype.alignment:
        flat = flat.copy()
    return flat.view(dtype).reshape(shape)
