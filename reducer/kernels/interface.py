"""What a set of kernels offers: the names, the buffers they take, the numbers they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc.Buffer is of Python 3.12

PART_SHIFT: Final = 16  # of the number of the first part that is not finite, above the Flag bits


class KernelSet(Protocol):
    """What ``load`` returns: a module with these names.

    Buffers are C-contiguous objects with the buffer protocol, at any alignment, and may be longer
    than needed. Errors, before a byte is written: ``ValueError`` for one that is too short, for
    operands that overlap in a way not allowed below, and for an op or dtype without a kernel;
    ``BufferError`` for one that is read-only or not contiguous; ``TypeError`` for no buffer.
    ``op`` and ``dtype`` are ``ReduceOp`` and ``DType`` numbers; ``count`` is in elements.
    """

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of the module
        """``"native"`` or ``"numpy"``."""

    def crc32c(self, data: Buffer, value: int = 0) -> int:
        """CRC-32C (Castagnoli) of ``data``, going on from ``value``."""

    def acc_itemsize(self, op: int, dtype: int) -> int:
        """Bytes of one element of the accumulator."""

    def fold(
        self, op: int, dtype: int, count: int, acc: Buffer, parts: Sequence[Buffer], first: bool
    ) -> int:
        """Fold ``parts`` in order into ``acc``; ``first``: begin from ``parts[0]``, not ``acc``.

        ``acc`` holds ``count`` accumulator elements and overlaps no part; but with ``first`` it may
        be ``parts[0]``, where its elements are as wide and another part follows. Returns ``Flag``
        bits, OVERFLOW if an integer accumulator wrapped, NONFINITE if a part is not finite; and
        above them, from PART_SHIFT on, the number of the first such part, from 1.
        """

    def finish(
        self,
        op: int,
        dtype: int,
        count: int,
        world: int,
        acc: Buffer | None,
        parts: Sequence[Buffer],
        out: Buffer,
    ) -> int:
        """Fold the last ``parts`` and write the result to ``out``: ``count`` elements of ``dtype``.

        ``acc`` None: begin from ``parts[0]``. A mean is divided once, by ``world``. ``acc`` stays
        as it was, unless ``out`` begins where ``acc`` begins; ``out`` may also begin where a part
        does. Returns what ``fold`` returns: OVERFLOW (here or in the accumulator's last steps),
        NAN, NONFINITE also where only the result is not finite.
        """

    def narrow(self, dtype: int, count: int, source: Buffer, out: Buffer) -> int:
        """Round ``count`` float32 to a 16-bit ``dtype``, ties to even. Returns NAN or 0."""

    def widen(self, dtype: int, count: int, source: Buffer, out: Buffer) -> None:
        """Write ``count`` elements of a 16-bit ``dtype`` as float32, exactly."""
