"""Measures the cost of sending float32 gradients in fewer bits: rounding errors and overflows."""

from __future__ import annotations

import math

import numpy as np
import torch

from reducer.kernels import load
from reducer.wire.codes import DType, ReduceOp
from reducer.wire.sizes import contribution_bytes
from reducer_client.dtypes import WireDtype, is_quantised, narrow_to
from reducer_client.reports import logger

# Smallest magnitude that rounds to Inf in float16: half a step above its largest number, 65,504.
_FLOAT16_OVERFLOW = 65520.0


class NarrowingGauge:
    """Measures buckets before they are narrowed.

    Attributes:
        every: number of buckets per measurement of the error. A measurement takes about four passes
            over the bucket.
        error: relative error of the last measured bucket, ``|x - narrow(x)| / |x|`` in the
            Euclidean norm, rounded to nearest; None before the first measurement. Error feedback
            makes up for it later.
        overflows: number of buckets in which finite values became Inf. Only float16 overflows.
    """

    def __init__(self, wire_dtype: WireDtype | None, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"every={every}: expected 1 or more buckets")
        self.every = every
        self._error: float | None = None
        self._measured: tuple[torch.Tensor, torch.Tensor] | None = None
        self.overflows = 0
        self._wire_dtype = None if wire_dtype == "float32" else wire_dtype
        self._finds_overflow = wire_dtype == "float16"
        self._seen = 0

    @property
    def error(self) -> float | None:
        self._settle()
        return self._error

    def observe(self, bucket: torch.Tensor) -> None:
        """Measure a bucket. Only float32 buckets are narrowed.

        The bucket is in host memory, or on a device if ``wire_dtype`` is ``"bfloat16"``.
        """
        if self._wire_dtype is None or bucket.dtype is not torch.float32 or not bucket.numel():
            return
        if self._seen % self.every == 0:
            self._measure(bucket)
        self._seen += 1
        if self._finds_overflow:
            self._find_overflow(bucket)

    def _measure(self, bucket: torch.Tensor) -> None:
        self._settle()
        lost = (_narrowed(bucket, self._wire_dtype) - bucket).norm()
        self._measured = lost, bucket.norm()

    def _settle(self) -> None:
        """Take over the last measurement, which may wait for a device."""
        if self._measured is None:
            return
        lost, norm = (float(number) for number in self._measured)
        self._measured = None
        if math.isfinite(lost):  # not finite if the bucket itself has NaN or Inf
            self._error = lost / norm if norm else 0.0

    def _find_overflow(self, bucket: torch.Tensor) -> None:
        least, greatest = bucket.aminmax()
        largest = float(torch.maximum(-least, greatest))
        if not _FLOAT16_OVERFLOW <= largest < float("inf"):
            return
        self.overflows += 1
        if self.overflows == 1:
            logger.warning(
                "a gradient of %g became Inf in float16, whose largest number is 65504: "
                'wire_dtype="bfloat16" has the range of float32. This is logged once; '
                "state.narrowing.overflows counts such buckets",
                largest,
            )


def _narrowed(bucket: torch.Tensor, wire_dtype: WireDtype | None) -> torch.Tensor:
    """What float32 is after it was sent."""
    if is_quantised(wire_dtype):
        blocks = narrow_to(ReduceOp.MEAN, DType.FLOAT32, wire_dtype).dtype
        return _dequantised(bucket, blocks)
    narrow: torch.dtype = getattr(torch, str(wire_dtype))
    return bucket.to(narrow).float()


def _dequantised(bucket: torch.Tensor, dtype: DType) -> torch.Tensor:
    kernels, count = load(), bucket.numel()
    blocks = np.empty(contribution_bytes(dtype, count), np.uint8)
    kernels.quantise(dtype, count, bucket.numpy().data, blocks.data)
    found = torch.empty_like(bucket)
    kernels.dequantise(dtype, count, blocks.data, found.numpy().data)
    return found
