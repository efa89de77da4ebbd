"""What rounds of quantised blocks must give, bit for bit, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reducer.core.rounds.chunk_plan import ChunkPlan, make_plan
from reducer.kernels import KernelSet, _numpy
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import BLOCKS, TO_BFLOAT16, Collective, DType, ReduceOp
from reducer.wire.keys import key_id
from tests.support.oracle import from_bfloat16

F32 = np.ndarray[Any, np.dtype[np.float32]]
DTYPES = sorted(BLOCKS)


@dataclass(frozen=True)
class BlocksRound:
    """One round; `kernels` are the reference in NumPy unless a test has no time for it."""

    dtype: DType
    key: str
    number: int = 0
    collective: Collective = Collective.ALL_REDUCE
    op: ReduceOp = ReduceOp.SUM
    table: ChunkTable = ((0, 65_536),)
    stochastic: bool = False
    kernels: KernelSet = _numpy

    def expected(
        self, sources: Mapping[int, F32], world: int, residuals: Mapping[int, F32] | None = None
    ) -> F32:
        """The result of these ranks' sources; changes the residuals as the workers do.

        Of a reduce-scatter, one after the other, what all ranks get.
        """
        plan = self._plan(world, next(iter(sources.values())).size)
        found = np.empty(plan.vectors * plan.count, np.float32)
        for chunk, piece in self._pieces(plan):
            parts = [
                self._sent(chunk, rank, source[piece], residuals and residuals[rank][piece])
                for rank, source in sorted(sources.items())
            ]
            found[piece] = self._result(parts, piece.stop - piece.start)
        return found

    @property
    def chunk_bytes(self) -> int:
        """The size in float32 of each chunk of an all-reduce but the last."""
        return 4 * self._plan(1, 0).chunk_elements

    def _plan(self, world: int, size: int) -> ChunkPlan:
        scatters = self.collective == Collective.REDUCE_SCATTER
        count = size // world if scatters else size
        return make_plan(self.collective, self.dtype, count, world, self.table)

    @staticmethod
    def _pieces(plan: ChunkPlan) -> Iterator[tuple[int, slice]]:
        for chunk in range(plan.chunks):
            step = chunk // plan.vectors * plan.chunk_elements
            start = plan.vector(chunk) * plan.count + step
            yield chunk, slice(start, start + plan.elements(chunk))

    def _sent(self, chunk: int, rank: int, source: F32, residual: F32 | None) -> bytes:
        seed = self.kernels.blocks_seed(key_id(self.key), self.number, chunk, rank)
        size = make_plan(self.collective, self.dtype, source.size, 1, self.table).vector_bytes
        blocks = bytearray(size)
        self.kernels.quantise(
            self.dtype, source.size, source, blocks, residual, seed if self.stochastic else None
        )
        return bytes(blocks)

    def _result(self, parts: list[bytes], count: int) -> F32:
        narrow = self.dtype in TO_BFLOAT16
        out = bytearray(2 * count if narrow else len(parts[0]))
        self.kernels.finish(self.op, self.dtype, count, len(parts), None, parts, out)
        if narrow:
            return from_bfloat16(np.frombuffer(out, np.uint16))
        found = np.empty(count, np.float32)
        self.kernels.dequantise(self.dtype, count, out, found)
        return found
