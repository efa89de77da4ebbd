"""The options of a measurement: sizes, data type, operation, repetitions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

from reducer.wire.codes import ITEM_SIZES, NOT_IN_NUMPY, DType, ReduceOp
from reducer_client.dtypes import NARROW_NAMES, NarrowName, WireDtype
from reducer_client.quantized import BLOCKS_NAMES, BlocksName, Down, Quantized

CollectiveName = Literal["all_reduce", "broadcast", "all_gather", "reduce_scatter"]
OpName = Literal["sum", "mean", "min", "max", "prod"]
COLLECTIVES: tuple[CollectiveName, ...] = get_args(CollectiveName)
OPS: tuple[OpName, ...] = get_args(OpName)
NARROW = (*NARROW_NAMES, *BLOCKS_NAMES)
DOWN: tuple[Down, ...] = get_args(Down)
DTYPES = tuple(DType(dtype).name.lower() for dtype in ITEM_SIZES)
_REDUCING = ("all_reduce", "reduce_scatter")
# The array has a part for each rank. The size counts all parts, as in nccl-tests.
_PARTED = ("all_gather", "reduce_scatter")
_MAX_SIZES = 10_000


@dataclass(frozen=True)
class Sweep:
    """The options that must be equal on all ranks. Sizes are in bytes of the whole array."""

    collective: CollectiveName
    dtype: str
    op: OpName
    wire_dtype: NarrowName | BlocksName | None
    min_bytes: int
    max_bytes: int
    step_factor: int
    step_bytes: int | None
    iters: int
    warmup: int
    check: bool
    down: Down = "bfloat16"

    def __post_init__(self) -> None:
        if self.down == "same" and not self.quantised:
            raise ValueError(
                f"down: expected only with a wire-dtype of {', '.join(BLOCKS_NAMES)}, got "
                f"{self.wire_dtype}"
            )
        if self.quantised and self.op not in ("sum", "mean"):
            raise ValueError(f"op: expected sum or mean with {self.wire_dtype}, got {self.op}")
        if self.min_bytes > self.max_bytes:
            raise ValueError(
                f"minbytes: expected at most maxbytes ({self.max_bytes}), got {self.min_bytes}"
            )
        if self.narrows and (self.held is not DType.FLOAT32 or not self.reduces):
            raise ValueError(
                "wire-dtype: expected only with a reduction of float32, "
                f"got {self.wire_dtype} with {self.collective} of {self.dtype}"
            )
        if self.collective == "reduce_scatter" and self.held in NOT_IN_NUMPY:
            raise ValueError(
                f"datatype: reducer bench runs no reduce_scatter of {self.dtype}; expected another "
                "type, or float32 with wire-dtype bfloat16"
            )

    @property
    def reduces(self) -> bool:
        """Whether the collective reduces values (the others only move them)."""
        return self.collective in _REDUCING

    @property
    def held(self) -> DType:
        """The dtype of a rank's arrays."""
        return DType[self.dtype.upper()]

    @property
    def wire(self) -> DType:
        """The dtype on the wire."""
        sent_as = self.sent_as
        if isinstance(sent_as, Quantized):
            return sent_as.code
        return DType[sent_as.upper()] if sent_as else self.held

    @property
    def sent_as(self) -> WireDtype | None:
        """The ``wire_dtype`` of the calls."""
        if self.wire_dtype in BLOCKS_NAMES:
            return Quantized(self.wire_dtype, self.down)
        return self.wire_dtype

    @property
    def narrows(self) -> bool:
        """Whether float32 arrays are narrowed to another dtype on the wire."""
        return self.wire_dtype is not None

    @property
    def quantised(self) -> bool:
        return self.wire_dtype in BLOCKS_NAMES

    @property
    def reduce_op(self) -> ReduceOp:
        return ReduceOp[self.op.upper()] if self.reduces else ReduceOp.COPY

    @property
    def turns(self) -> int:
        """Iterations of one size, warm-up included."""
        return self.warmup + self.iters

    def counts(self, world_size: int) -> list[int]:
        """The number of elements of each measurement: of the array, or of one rank's part.

        Raises ValueError if a size is below one element per part, or if there are too many sizes.
        """
        parts = world_size if self.collective in _PARTED else 1
        unit = ITEM_SIZES[self.held] * parts
        if self.min_bytes < unit:
            raise ValueError(
                f"minbytes: expected at least {unit} for {self.collective} of {self.dtype} over "
                f"{world_size} ranks, got {self.min_bytes}"
            )
        return [size // unit for size in self._sizes()]

    def row_bytes(self, count: int, world_size: int) -> int:
        """Bytes of the whole array for an entry of ``counts``."""
        parts = world_size if self.collective in _PARTED else 1
        return count * parts * ITEM_SIZES[self.held]

    def bus_factor(self, world_size: int) -> float:
        """Bus bandwidth divided by algorithm bandwidth, as nccl-tests defines them for a ring."""
        if self.collective == "all_reduce":
            return 2 * (world_size - 1) / world_size
        return (world_size - 1) / world_size if self.collective in _PARTED else 1.0

    def digest(self) -> bytes:
        """A hash of all options, 32 bytes."""
        return hashlib.sha256(repr(self).encode()).digest()

    def _sizes(self) -> list[int]:
        sizes = [self.min_bytes]
        while (size := self._next(sizes[-1])) <= self.max_bytes:
            sizes.append(size)
            if len(sizes) > _MAX_SIZES:
                raise ValueError(
                    f"stepbytes {self.step_bytes:,}: expected at most {_MAX_SIZES:,} sizes from "
                    f"{self.min_bytes:,} to {self.max_bytes:,} bytes, got more; take larger steps"
                )
        return sizes

    def _next(self, size: int) -> int:
        return size + self.step_bytes if self.step_bytes else size * self.step_factor
