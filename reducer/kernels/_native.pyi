from collections.abc import Sequence

from typing_extensions import Buffer

NAME: str

def crc32c(data: Buffer, value: int = 0) -> int: ...
def acc_itemsize(op: int, dtype: int) -> int: ...
def fold(
    op: int, dtype: int, count: int, acc: Buffer, parts: Sequence[Buffer], first: bool
) -> int: ...
def finish(
    op: int,
    dtype: int,
    count: int,
    world: int,
    acc: Buffer | None,
    parts: Sequence[Buffer],
    out: Buffer,
) -> int: ...
def narrow(dtype: int, count: int, source: Buffer, out: Buffer) -> int: ...
def widen(dtype: int, count: int, source: Buffer, out: Buffer) -> None: ...
def quantise(
    dtype: int,
    count: int,
    source: Buffer,
    out: Buffer,
    residual: Buffer | None = None,
    seed: int | None = None,
) -> int: ...
def dequantise(dtype: int, count: int, blocks: Buffer, out: Buffer) -> None: ...
def blocks_seed(key: int, round: int, chunk: int, rank: int) -> int: ...
def apply(
    rule: int,
    count: int,
    parameters: Buffer,
    gradient: Buffer,
    slots: Sequence[Buffer],
    scalars: Sequence[float],
) -> int: ...
def within(count: int, values: Buffer, limit: float) -> bool: ...
def levels() -> list[str]:
    """The instruction sets that this machine can run, the one in use by default first."""

def use_level(name: str) -> None:
    """For tests: run all kernels of this process on one of ``levels()``."""
