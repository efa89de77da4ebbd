"""How a round is cut into chunks (PROTOCOL.md, section 6). `chunk_owners.py` says who owns them."""

from __future__ import annotations

from dataclasses import dataclass

from reducer.core.limits.charges import MIN_COST
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import ALL_GATHER, BROADCAST, REDUCE_SCATTER, DType
from reducer.wire.sizes import Layout, contribution_layout, result_layout


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
    reduce_scatter, else one. Chunk c belongs to vector c % vectors. `sent` and `received` are the
    layouts of a contribution and of a result.
    """

    collective: int
    vectors: int
    count: int
    sent: Layout
    received: Layout
    chunk_elements: int
    chunks: int

    def vector(self, chunk: int) -> int:
        return chunk % self.vectors

    def elements(self, chunk: int) -> int:
        left = self.count - chunk // self.vectors * self.chunk_elements
        return self.chunk_elements if left >= self.chunk_elements else max(0, left)

    @property
    def is_even(self) -> bool:
        """Whether a result has the size of a contribution."""
        return self.sent is self.received

    @property
    def vector_bytes(self) -> int:
        """Bytes that a rank contributes to one vector."""
        return self.sent.bytes(self.count)

    def result_bytes(self, chunk: int) -> int:
        return self.received.bytes(self.elements(chunk))

    def cost(self, chunk: int) -> int:
        """What the chunk takes of a rank's credit: room for a contribution or for the result."""
        elements = self.elements(chunk)
        size = self.sent.bytes(elements)
        if self.sent is not self.received:
            size = max(size, self.received.bytes(elements))
        return size if size > MIN_COST else MIN_COST

    def sends(self, chunk: int, rank: int, root: int) -> int:
        """Bytes that `rank` contributes to `chunk`."""
        if self.collective == BROADCAST and rank != root:
            return 0
        if self.collective == ALL_GATHER and rank != self.vector(chunk):
            return 0
        return self.sent.bytes(self.elements(chunk))

    def receives(self, chunk: int, rank: int, root: int) -> int:
        """Bytes of the result of `chunk` that `rank` is sent."""
        if self.collective == BROADCAST and rank == root:
            return 0
        if self.collective == ALL_GATHER and rank == self.vector(chunk):
            return 0
        if self.collective == REDUCE_SCATTER and rank != self.vector(chunk):
            return 0
        return self.result_bytes(chunk)


def make_plan(
    collective: int, dtype: DType | int, count: int, world_size: int, table: ChunkTable
) -> ChunkPlan:
    sent, received = contribution_layout(dtype), result_layout(dtype)
    gathers = collective in (ALL_GATHER, REDUCE_SCATTER)
    vectors = world_size if gathers else 1
    size = chunk_bytes(table, vectors * max(sent.bytes(count), received.bytes(count)))
    unit_bytes = max(sent.unit_bytes, received.bytes(sent.unit))
    chunk_elements = max(1, size // unit_bytes) * sent.unit
    chunks = vectors * max(1, -(-count // chunk_elements))
    return ChunkPlan(int(collective), vectors, count, sent, received, chunk_elements, chunks)
