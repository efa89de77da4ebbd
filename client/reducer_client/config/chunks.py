"""How the work is cut: sizes of chunks, and the reducers' shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from reducer.units import parse_int, parse_size
from reducer.wire.codes import MAX_CHUNK_BYTES, MAX_CHUNK_TABLE_ROWS, MAX_WEIGHTED, MAX_WEIGHTS
from reducer_client.config.values import Kind

Rows = tuple[tuple[int, int], ...]

# Rows of (minimum bytes of a round per reducer, bytes of its chunks).
#  - No result travels before the first chunk of each reducer has arrived. This costs the fraction
#    reducers x chunk / round of a round's time, 0.4 % for large rounds with this table.
#  - Small rounds have small chunks, so that they still use all reducers.
#  - Chunks above 256 KiB save no more CPU, and a lane reserves memory for several of the largest
#    chunks per rank.
_CHUNKS_PER_REDUCER = (
    (0, 16 << 10),
    (128 << 10, 32 << 10),
    (1 << 20, 64 << 10),
    (32 << 20, 128 << 10),
    (64 << 20, 256 << 10),
)
CHUNK_ALIGNMENT = 64


def default_chunk_table(reducers: int, weights: Sequence[int] = ()) -> Rows:
    """Rows of (minimum bytes of a round, bytes of its chunks) for this number of reducers.

    If the weights differ, the reducer with the heaviest share decides, as if all shares were equal
    to it.
    """
    alike = sum(weights) // max(weights) if weights else reducers
    return tuple((least * alike, chunk) for least, chunk in _CHUNKS_PER_REDUCER)


def check_weights(weights: Sequence[int], reducers: int) -> tuple[int, ...]:
    """The weights as a tuple; () if all are equal. Raises ValueError for weights that PROTOCOL.md,
    section 6, excludes.
    """
    given = tuple(int(weight) for weight in weights)
    if not given:
        return ()
    if len(given) != reducers:
        raise ValueError(
            f"weights: expected {reducers}, one for each reducer, got {len(given)}: {given}"
        )
    if min(given) < 1:
        raise ValueError(f"weights: expected numbers from 1 on, got {given}")
    if min(given) == max(given):
        return ()
    if reducers > MAX_WEIGHTED or sum(given) > MAX_WEIGHTS:
        raise ValueError(
            f"weights: expected a sum of at most {MAX_WEIGHTS:,} and at most {MAX_WEIGHTED} "
            f"reducers, got a sum of {sum(given):,} for {reducers} reducers"
        )
    return given


def _check_rows(value: Any) -> Rows:
    """The table as tuples. Raises ValueError for tables that PROTOCOL.md, section 6, excludes."""
    table = tuple((int(least), int(chunk)) for least, chunk in value)
    if not 1 <= len(table) <= MAX_CHUNK_TABLE_ROWS or table[0][0] != 0:
        raise ValueError(
            f"expected 1 to {MAX_CHUNK_TABLE_ROWS} rows, the first for rounds from 0 bytes"
        )
    if any(later[0] <= earlier[0] for earlier, later in pairwise(table)):
        raise ValueError("expected rows with ascending minimum bytes")
    for _, chunk in table:
        if not 0 < chunk <= MAX_CHUNK_BYTES or chunk % CHUNK_ALIGNMENT:
            raise ValueError(
                f"chunks of {chunk} bytes; expected a multiple of {CHUNK_ALIGNMENT} up to "
                f"{MAX_CHUNK_BYTES}"
            )
    return table


def _parse_rows(text: str) -> Rows:
    try:
        rows = [row.split(":") for row in text.split(",")]
        return tuple((parse_size(least), parse_size(chunk)) for least, chunk in rows)
    except ValueError:
        raise ValueError("expected rows such as 0:64KiB,1MiB:256KiB") from None


def _parse_weights(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_int(part) for part in text.split(","))
    except ValueError:
        raise ValueError("expected numbers such as 3,3,1") from None


CHUNK_TABLE: Kind[Rows] = Kind(_check_rows, _parse_rows)
WEIGHTS: Kind[tuple[int, ...]] = Kind(tuple, _parse_weights)
