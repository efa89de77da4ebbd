"""How a round is cut into chunks (PROTOCOL.md, section 6). `chunk_owners.py` says who owns them."""

from __future__ import annotations

from dataclasses import dataclass

from reducer.core.limits.charges import MIN_COST
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import ALL_GATHER, BROADCAST, ITEM_SIZES, REDUCE_SCATTER, DType


def chunk_bytes(table: ChunkTable, round_bytes: int) -> int:
    """Bytes of a full chunk in a round of `round_bytes`."""
    size = table[0][1]
    for least, chunk in table:
        if round_bytes >= least:
            size = chunk
    return size


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The chunks of one round: the same on every rank and lane.

    A round has `vectors` vectors of `count` elements: one for each rank in an all_gather and in a
    reduce_scatter, else one. Chunk c belongs to vector c % vectors.
    """

    collective: int
    vectors: int
    count: int
    item: int
    chunk_elements: int
    chunks: int

    def vector(self, chunk: int) -> int:
        return chunk % self.vectors

    def elements(self, chunk: int) -> int:
        left = self.count - chunk // self.vectors * self.chunk_elements
        return self.chunk_elements if left >= self.chunk_elements else max(0, left)

    def bytes(self, chunk: int) -> int:
        return self.elements(chunk) * self.item

    def cost(self, chunk: int) -> int:
        size = self.elements(chunk) * self.item
        return size if size > MIN_COST else MIN_COST

    def sends(self, chunk: int, rank: int, root: int) -> int:
        """Bytes that `rank` contributes to `chunk`."""
        if self.collective == BROADCAST and rank != root:
            return 0
        if self.collective == ALL_GATHER and rank != self.vector(chunk):
            return 0
        return self.bytes(chunk)

    def receives(self, chunk: int, rank: int, root: int) -> int:
        """Bytes of the result of `chunk` that `rank` is sent."""
        if self.collective == BROADCAST and rank == root:
            return 0
        if self.collective == ALL_GATHER and rank == self.vector(chunk):
            return 0
        if self.collective == REDUCE_SCATTER and rank != self.vector(chunk):
            return 0
        return self.bytes(chunk)


def make_plan(
    collective: int, dtype: DType | int, count: int, world_size: int, table: ChunkTable
) -> ChunkPlan:
    item = ITEM_SIZES[dtype]
    gathers = collective in (ALL_GATHER, REDUCE_SCATTER)
    vectors = world_size if gathers else 1
    chunk_elements = chunk_bytes(table, vectors * count * item) // item
    per_vector = max(1, -(-count // chunk_elements))
    return ChunkPlan(int(collective), vectors, count, item, chunk_elements, vectors * per_vector)
