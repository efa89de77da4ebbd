"""Kernels: fold contributions, finish a result, cast, checksum.

Two sets with the same bits: ``_native`` (C, chosen whenever it was built) and ``_numpy`` (the
reference twin, and what a reducer runs on after an install with ``REDUCER_NO_NATIVE=1``). Nothing
here knows of rounds, sockets or time.

The law that both hold: begin from the first operand, never from +0.0; operands in the order
given, which is rank order; one rounding at the end (float16 is summed in float64, bfloat16 and
float8 in float32); NaN results are one canonical quiet NaN; min and max propagate NaN, and -0 < +0;
an integer mean truncates toward zero; integers wrap and say so; band, bor and bxor are of integers
alone. Not finite is what holds NaN or
Inf; for min and max NaN alone, since Inf is a number like others there. float8_e4m3fn has no Inf: a
sum beyond 448 is NaN, as where PyTorch casts.
"""

from __future__ import annotations

from reducer.kernels.interface import PART_SHIFT, KernelSet

__all__ = ["PART_SHIFT", "KernelSet", "load"]


def load(require_native: bool = False, no_native: bool = False) -> KernelSet:
    """The native kernels, or the NumPy twin where they were not built or are not wanted.

    Raises ``ImportError`` with ``require_native`` if there are no native kernels.
    """
    try:
        if no_native:
            raise ImportError("the option no-native is set")
        from reducer.kernels import _native
    except ImportError as error:
        if require_native:
            raise ImportError(
                "the native kernels are required, but there are none "
                f"({error}); install again, and start, without REDUCER_NO_NATIVE"
            ) from error
        from reducer.kernels import _numpy

        return _numpy
    return _native
