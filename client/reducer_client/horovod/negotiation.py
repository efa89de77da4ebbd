"""Decides which tensors are ready, in which order they are reduced and which are fused.

A tensor is ready when all ranks have announced it. This is a state machine without I/O, clock or
thread. Its plans are a pure function of the announcements, in the order of rounds and ranks. So
every rank makes the same plan, and the collectives of a plan need no names on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reducer_client.errors import name_ranks
from reducer_client.horovod.requests import Kind, ReduceOp, Request

_REDUCED = ("dtype", "shape", "op", "prescale", "postscale", "wire")
# Attributes that must be equal on all ranks, apart from the kind itself.
_EQUAL: dict[Kind, tuple[str, ...]] = {
    Kind.ALLREDUCE: _REDUCED,
    Kind.REDUCESCATTER: _REDUCED,
    Kind.ALLGATHER: ("dtype", "row_shape"),
    Kind.ALLTOALL: ("dtype", "row_shape"),
    Kind.BROADCAST: ("dtype", "shape", "root"),
    Kind.BARRIER: ("numbers",),
}
# Operations to which a rank that has joined can contribute zeros.
_JOINABLE_OPS = (ReduceOp.SUM, ReduceOp.AVERAGE)


@dataclass(frozen=True)
class Tensor:
    """A name, and the requests for it by rank of the set, without ranks that have joined."""

    name: str
    by_rank: dict[int, Request]
    request: Request  # the lowest rank's request


@dataclass
class Response:
    """The next operation of all ranks: tensors that are fused, or one tensor with an error."""

    tensors: list[Tensor]
    error: str = ""

    @property
    def request(self) -> Request:
        return self.tensors[0].request

    @property
    def names(self) -> list[str]:
        return [tensor.name for tensor in self.tensors]


@dataclass(frozen=True)
class ResponseList:
    """Responses, in the order in which every rank runs them.

    ``last_joined`` is the rank of the set that joined last if all ranks have joined, else None.
    """

    responses: list[Response]
    last_joined: int | None = None


@dataclass
class Negotiation:
    """Negotiates for one process set.

    Keeps each announced request until every rank has announced the tensor, and puts the operations
    that are then ready in order.

    Args:
        ranks: global ranks of the set, for error texts.
        fusion_threshold: maximum size in bytes of fused tensors. A larger tensor is not fused.
    """

    ranks: Sequence[int]
    fusion_threshold: int
    _table: dict[str, dict[int, Request]] = field(default_factory=dict)
    _joined: list[int] = field(default_factory=list)

    def step(self, announced: Sequence[Sequence[Request]]) -> ResponseList:
        """Process one round. ``announced`` has the requests of each rank of the set."""
        for rank, requests in enumerate(announced):
            for request in requests:
                if request.kind is Kind.JOIN:
                    self._joined.append(rank)
                else:
                    self._table.setdefault(request.name, {})[rank] = request
        ready = self._take_ready() if any(announced) else []
        last = None
        if len(self._joined) == len(self.ranks):
            last = self._joined[-1]
            self._joined.clear()
        return ResponseList(fuse(ready, self.fusion_threshold), last)

    def missing(self, name: str) -> list[int]:
        """The global ranks that have not announced the name so far."""
        have = {*self._table.get(name, {}), *self._joined}
        return [rank for index, rank in enumerate(self.ranks) if index not in have]

    def _take_ready(self) -> list[Response]:
        size, joined = len(self.ranks), set(self._joined)
        names = [name for name, by_rank in self._table.items() if len({*by_rank, *joined}) == size]
        ready = []
        for name in names:
            by_rank = self._table.pop(name)
            tensor = Tensor(name, by_rank, by_rank[min(by_rank)])
            ready.append(Response([tensor], self._error_of(tensor)))
        return ready

    def _error_of(self, tensor: Tensor) -> str:
        joined = [rank for index, rank in enumerate(self.ranks) if index not in tensor.by_rank]
        return self._mismatch(tensor) or (_joined_error(tensor.request, joined) if joined else "")

    def _mismatch(self, tensor: Tensor) -> str:
        # The request cache returns the same object for equal known requests of all ranks.
        if all(request is tensor.request for request in tensor.by_rank.values()):
            return ""
        for what in ("kind", *_EQUAL[tensor.request.kind]):
            found: dict[object, list[int]] = {}
            for index, request in sorted(tensor.by_rank.items()):
                found.setdefault(getattr(request, what), []).append(self.ranks[index])
            if len(found) > 1:
                return _mismatch_text(tensor.name, what, found)
        return ""


def fuse(ready: list[Response], threshold: int) -> list[Response]:
    """Fuse responses that may be fused. The result is in the order of their first tensors."""
    fused: list[Response] = []
    open_by_kind: dict[object, tuple[Response, int]] = {}
    for response in ready:
        kind = None if response.error else _fusion_kind(response.request)
        size = _size(response.tensors[0])
        last = open_by_kind.get(kind) if kind is not None else None
        if last is not None and last[1] + size <= threshold:
            last[0].tensors.extend(response.tensors)
            open_by_kind[kind] = (last[0], last[1] + size)
            continue
        fused.append(response)
        if kind is not None:
            open_by_kind[kind] = (response, size)
    return fused


def _fusion_kind(request: Request) -> object:
    """A value that is equal for requests that may be fused; None if a request may not be fused."""
    if request.kind is Kind.ALLREDUCE:
        return (request.kind, request.dtype, request.op, request.wire)
    if request.kind is Kind.BROADCAST:
        return (request.kind, request.root)
    return request.kind if request.kind is Kind.ALLGATHER else None


def _size(tensor: Tensor) -> int:
    """The tensor's bytes in the fusion buffer; for an allgather, the bytes of all ranks."""
    if tensor.request.kind is Kind.ALLGATHER:
        return sum(request.nbytes for request in tensor.by_rank.values())
    return tensor.request.nbytes


def _joined_error(request: Request, joined: list[int]) -> str:
    if request.kind is Kind.BARRIER and not request.numbers:
        return ""
    if request.kind is Kind.ALLREDUCE and request.op in _JOINABLE_OPS:
        return ""
    what = request.name.split(".")[0] if request.numbers else request.kind.name.lower()
    if request.kind is Kind.ALLREDUCE:
        what += f" with {request.op.name.lower()}"
    have = "have" if len(joined) > 1 else "has"
    return (
        f"{request.name!r}: {name_ranks(joined)} {have} joined, but {what} needs every rank; until "
        "all ranks have joined, the others may call only allreduce with Sum or Average"
    )


def _mismatch_text(name: str, what: str, found: dict[object, list[int]]) -> str:
    parts = [f"{_value(value)} on {name_ranks(ranks)}" for value, ranks in found.items()]
    differs = "process set differs" if what == "numbers" else f"{what.replace('_', ' ')} differs"
    return (
        f"{name!r}: {differs} between ranks: {', '.join(parts)}; expected equal values on all ranks"
    )


def _value(value: object) -> str:
    if isinstance(value, Kind | ReduceOp):
        return value.name.lower()
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
    return str(value) or "none"
