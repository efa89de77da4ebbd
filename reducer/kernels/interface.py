"""The interface of a set of kernels: functions, buffers, return values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc.Buffer is new in Python 3.12

PART_SHIFT: Final = 16  # result >> PART_SHIFT is the number of the first part that is not finite


class KernelSet(Protocol):
    """The module that ``load`` returns.

    Buffers are C-contiguous objects with the buffer protocol. They may have any alignment and may
    be longer than needed. ``op`` and ``dtype`` are ``ReduceOp`` and ``DType`` numbers; ``count`` is
    in elements.

    A kernel raises before it writes a byte: ``ValueError`` if a buffer is too short, if operands
    overlap in a way that is not allowed below, or if the op or dtype has no kernel; ``BufferError``
    if a buffer is not contiguous, or read-only where it must be writable; ``TypeError`` if an
    argument has no buffer protocol.
    """

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of the module
        """``"native"`` or ``"numpy"``."""

    def crc32c(self, data: Buffer, value: int = 0) -> int:
        """CRC-32C (Castagnoli) of ``data``; ``value`` is the CRC of the bytes before ``data``."""

    def acc_itemsize(self, op: int, dtype: int) -> int:
        """Bytes of one element of the accumulator."""

    def fold(
        self, op: int, dtype: int, count: int, acc: Buffer, parts: Sequence[Buffer], first: bool
    ) -> int:
        """Fold ``parts`` in order into ``acc``; with ``first``, begin from ``parts[0]`` instead.

        ``acc`` has ``count`` accumulator elements and overlaps no part. Exception: with ``first``,
        ``acc`` may be ``parts[0]`` if accumulator and wire elements have the same size and another
        part follows.

        Returns ``Flag`` bits: OVERFLOW if an integer accumulator wrapped, NONFINITE if a part is
        not finite. The bits from PART_SHIFT on hold the number of the first such part, from 1.
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
        """Fold the last ``parts`` and write ``count`` elements of ``dtype`` to ``out``.

        If ``acc`` is None, folding begins from ``parts[0]``. A mean is divided once, by ``world``.
        ``out`` may begin where ``acc`` or a part begins; otherwise ``acc`` does not change. If the
        parts are blocks and the result is bfloat16, ``out`` overlaps no part.

        Blocks are rounded to nearest. A block of the result that is not finite becomes NaN as a
        whole.

        Returns the same bits as ``fold``. OVERFLOW also reports a result that does not fit
        ``dtype``, NONFINITE also reports a result that is not finite, and NAN reports a NaN in the
        result.
        """

    def narrow(self, dtype: int, count: int, source: Buffer, out: Buffer) -> int:
        """Round ``count`` float32 to a 16-bit ``dtype``, ties to even. Returns NAN or 0."""

    def widen(self, dtype: int, count: int, source: Buffer, out: Buffer) -> None:
        """Convert ``count`` elements of a 16-bit ``dtype`` to float32; the conversion is exact."""

    def quantise(
        self,
        dtype: int,
        count: int,
        source: Buffer,
        out: Buffer,
        residual: Buffer | None = None,
        seed: int | None = None,
    ) -> int:
        """Write ``count`` float32 as blocks of ``dtype``, for a contribution.

        ``residual``, if given, has ``count`` float32, which are added to the source. It then holds
        what the blocks lack of this sum (error feedback); in a block that is not finite it does not
        change. Without ``seed`` codes are rounded to nearest. With a ``seed`` of 64 bits, they are
        rounded to one of their two neighbours at random, right in the mean: the same seed and
        place in the array give the same random number. No array overlaps another.

        Returns NONFINITE if a block is not finite, otherwise 0.
        """

    def dequantise(self, dtype: int, count: int, blocks: Buffer, out: Buffer) -> None:
        """Convert blocks of ``dtype`` to ``count`` float32, with canonical NaN."""

    def blocks_seed(self, key: int, round: int, chunk: int, rank: int) -> int:
        """The seed with which a rank quantises its contribution to a chunk of a round."""

    def apply(
        self,
        rule: int,
        count: int,
        parameters: Buffer,
        gradient: Buffer,
        slots: Sequence[Buffer],
        scalars: Sequence[float],
    ) -> int:
        """Take one step of an optimizer: change ``parameters`` and ``slots`` in place.

        ``rule`` is a ``Rule`` number. ``parameters``, ``gradient`` (the mean of the ranks) and each
        slot have ``count`` float32; none of them overlaps another. ``reducer.optimizers.rules`` has
        the formulas, the number of slots, and the scalars in their order. A scalar is rounded to
        float32; one that is not finite raises ``ValueError``.

        Returns NONFINITE if a parameter or a slot is not finite after the step, otherwise 0. A
        value that was not finite before the step always leads to NONFINITE, except parameters that
        REPLACE overwrites; so does an overflow. The arrays are changed in any case: ``finish``
        reports a mean that is not finite before any array is spoilt. Both sets of kernels give the
        same bits, except that the sign and the payload of a NaN are undefined.
        """

    def within(self, count: int, values: Buffer, limit: float) -> bool:
        """Whether all of ``count`` float32 are finite and below ``limit`` in magnitude.

        ``limit`` is above 0, or Inf, and is rounded to float32.
        """
