"""Checks the header of a contribution, before any memory is taken for the payload."""

from __future__ import annotations

from typing import Final

from reducer.core.limits.charges import PLAN, Records
from reducer.core.rounds.chunk_plan import ChunkPlan, make_plan
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import (
    BITWISE,
    BLOCKS,
    BROADCAST,
    FLOATS,
    MAX_CHUNKS,
    Collective,
    DType,
    Flag,
    ReduceOp,
)
from reducer.wire.errors import ProtocolError
from reducer.wire.header import Header
from reducer.wire.sizes import LAYOUTS, contribution_bytes

# A position is round x 2^24 + chunk in 64 bits.
MAX_ROUND: Final = (1 << 39) - 1
MAX_ROUND_BYTES: Final = 1 << 50
_PLANS_KEPT: Final = 1_024

_REDUCES: Final = frozenset(
    (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PROD, *BITWISE)
)
_OPS: dict[int, frozenset[ReduceOp]] = {
    Collective.ALL_REDUCE: _REDUCES,
    Collective.REDUCE_SCATTER: _REDUCES,
    Collective.BROADCAST: frozenset((ReduceOp.COPY,)),
    Collective.ALL_GATHER: frozenset((ReduceOp.COPY,)),
    Collective.BARRIER: frozenset((ReduceOp.NONE,)),
}
_WIDE: Final = int(Flag.WIDE)
_HELD: Final = int(Flag.HELD)
_OF_HELD: Final = int(Flag.HELD | Flag.OVERFLOW | Flag.NAN | Flag.NONFINITE)
# The collectives that go on without a lost rank: the parts of the others have a part for each rank.
_SHRINK: Final = frozenset((int(Collective.ALL_REDUCE), int(Collective.BARRIER)))
_SIXTEEN_BIT: Final = frozenset((int(DType.FLOAT16), int(DType.BFLOAT16)))
_BLOCKS: Final = frozenset(int(dtype) for dtype in BLOCKS)
_OF_BLOCKS: Final = frozenset((int(ReduceOp.SUM), int(ReduceOp.MEAN)))


class Plans:
    """The plans of a run's rounds, kept by collective, op, dtype and count."""

    def __init__(
        self, world_size: int, table: ChunkTable, records: Records, elastic: bool = False
    ) -> None:
        self._world_size = world_size
        self._elastic = elastic
        self._records = records
        self._table = table
        self._plans: dict[tuple[int, int, int, int], ChunkPlan] = {}
        self._last = Header(kind=0)  # its plan is `_of_last`
        self._of_last: ChunkPlan | None = None

    def checked(self, header: Header, rank: int) -> ChunkPlan:
        """Like `of`, for a frame of `rank`; raises ProtocolError if the header's fields are
        invalid.
        """
        held = header.flags & _HELD
        _check_fields(
            header, rank, self._world_size, header.flags & ~_OF_HELD if held else header.flags
        )
        if held and (not self._elastic or header.collective not in _SHRINK):
            raise ProtocolError(
                f"rank {rank} sent a result (flag HELD) of {_round(header)}; expected results of "
                "all_reduce and barrier alone, and only in a run whose ranks may be lost"
            )
        return self.of(header)

    def of_contribution(self, header: Header, rank: int) -> ChunkPlan:
        """Like `checked`, for a contribution: its chunk and its length are checked as well."""
        plan = self.checked(header, rank)
        if header.chunk >= plan.chunks:
            raise ProtocolError(
                f"rank {rank} sent chunk {header.chunk} of {_round(header)}, expected 0 to "
                f"{plan.chunks - 1}"
            )
        if header.flags & _HELD:
            expected = plan.result_bytes(header.chunk)
        else:
            expected = plan.sends(header.chunk, rank, header.root)
        if header.length != expected:
            raise ProtocolError(
                f"rank {rank} sent {header.length} bytes for chunk {header.chunk} of "
                f"{_round(header)}, expected {expected}"
            )
        return plan

    def of(self, header: Header) -> ChunkPlan:
        """Return the plan of a header's round; raises ProtocolError for an invalid round.

        Raises RecordsError if there is no room to keep the plan.
        """
        last = self._last
        if (
            self._of_last is not None
            and header.count == last.count
            and header.op == last.op
            and header.dtype == last.dtype
            and header.collective == last.collective
        ):
            return self._of_last
        known = (header.collective, header.op, header.dtype, header.count)
        plan = self._plans.get(known)
        if plan is None:
            plan = self._make(header)
            if len(self._plans) >= _PLANS_KEPT:
                self._records.give(PLAN * len(self._plans))
                self._plans.clear()
            self._records.take(PLAN)
            self._plans[known] = plan
        self._last, self._of_last = header, plan
        return plan

    def _make(self, header: Header) -> ChunkPlan:
        if header.dtype not in LAYOUTS:
            raise ProtocolError(f"unknown dtype {header.dtype} in {_round(header)}")
        if header.op not in _OPS.get(header.collective, ()):
            raise ProtocolError(
                f"{_round(header)}: op {header.op} does not belong to collective "
                f"{header.collective}"
            )
        op, dtype = ReduceOp(header.op).name.lower(), DType(header.dtype).name.lower()
        if header.op in BITWISE and header.dtype in FLOATS:
            raise ProtocolError(f"{_round(header)}: op {op} is for integers, got {dtype}")
        if header.dtype in _BLOCKS and header.op not in _OF_BLOCKS:
            raise ProtocolError(f"{_round(header)}: {dtype} is for op sum and mean, got {op}")
        if header.collective == Collective.BARRIER and header.count:
            raise ProtocolError(
                f"{_round(header)}: a barrier of {header.count} elements, expected 0"
            )
        size = contribution_bytes(header.dtype, header.count)
        if size * self._world_size > MAX_ROUND_BYTES:
            raise ProtocolError(
                f"{_round(header)}: {header.count:,} elements per part are more than the limit of "
                f"{MAX_ROUND_BYTES:,} bytes"
            )
        plan = make_plan(
            header.collective, header.dtype, header.count, self._world_size, self._table
        )
        if plan.chunks > MAX_CHUNKS:
            raise ProtocolError(
                f"{_round(header)}: {plan.chunks:,} chunks, the limit is {MAX_CHUNKS:,}: use "
                "larger chunks"
            )
        return plan


def _check_fields(header: Header, rank: int, world_size: int, flags: int) -> None:
    """The rules that need no plan; raises ProtocolError."""
    if header.rank != rank:
        raise ProtocolError(f"a contribution of rank {header.rank} came from rank {rank}")
    if header.dtype in _BLOCKS:
        if flags != _WIDE:
            raise ProtocolError(
                f"rank {rank} set flags {header.flags:#x} on dtype {header.dtype}; expected "
                f"{_WIDE:#x}, since blocks hold float32"
            )
    elif flags and (flags != _WIDE or header.dtype not in _SIXTEEN_BIT):
        raise ProtocolError(
            f"rank {rank} set flags {header.flags:#x} on dtype {header.dtype}; expected none, or "
            f"{_WIDE:#x} on float16 or bfloat16"
        )
    root_limit = world_size if header.collective == BROADCAST else 1
    if header.root >= root_limit:
        raise ProtocolError(
            f"rank {rank} named root {header.root}; expected 0 to {world_size - 1} for a "
            "broadcast, and 0 for any other collective"
        )
    if header.round > MAX_ROUND:
        raise ProtocolError(f"rank {rank} sent round {header.round}, the limit is {MAX_ROUND}")


def _round(header: Header) -> str:
    return f"key {header.key:#x} round {header.round}"
