"""Kernels: fold contributions, finish a result, cast, take optimizers' steps, compute checksums.

There are two sets, and both give the same bits: ``_native`` (C, used wherever it was built) and
``_numpy`` (the reference, and the fallback after an install with ``REDUCER_NO_NATIVE=1``). Kernels
know nothing of rounds, sockets or time.

Law of both sets:

- Operands are folded in the order given, which is rank order, from the first operand and never
  from +0.0.
- A result is rounded once, at the end. float16 is summed in float64, bfloat16 and float8 in
  float32.
- Quantised blocks are decoded, and summed in float32.
- A NaN in a result is the one canonical quiet NaN. min and max propagate NaN, and -0 < +0.
- Integers wrap, and the kernel reports OVERFLOW. The mean of integers truncates toward zero.
- band, bor and bxor take integers only; blocks have only sum and mean.
- NONFINITE reports NaN or Inf; with min and max only NaN, since Inf is an ordinary value there.
- float8_e4m3fn has no Inf: a sum beyond 448 becomes NaN, as in a cast of PyTorch.
- An optimizer's step is float32 in each operation (``reducer.optimizers.rules``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from reducer.kernels.interface import PART_SHIFT, KernelSet

__all__ = ["PART_SHIFT", "Choice", "KernelSet", "load"]

Choice: TypeAlias = Literal["auto", "native", "numpy"]


def load(choice: Choice = "auto") -> KernelSet:
    """The kernels of a choice: ``native``, ``numpy``, or ``auto``: native ones if there are any.

    Raises ``ImportError`` for ``native`` if there are no native kernels.
    """
    if choice != "numpy":
        try:
            from reducer.kernels import _native

            return _native
        except ImportError as error:
            if choice == "native":
                raise ImportError(
                    "the native kernels are required, but there are none "
                    f"({error}); install again without REDUCER_NO_NATIVE"
                ) from error
    from reducer.kernels import _numpy

    return _numpy
