"""Compressors: convert a tensor before it is sent, and convert its reduction back.

A compressor of your own is a class with the same two static methods.
"""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Converts a tensor before it is sent, and its reduction back to the tensor's dtype."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and the context that ``decompress`` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Undo ``compress``, except for its rounding."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends the tensor itself."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _Narrowing(Compressor):
    """Sends floating point in ``dtype``, and all other tensors as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        narrow = tensor.to(cls.dtype) if tensor.dtype.is_floating_point else tensor
        return narrow, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class FP16Compressor(_Narrowing):
    """Sends floating point as float16. Values and sums beyond 65504 become Inf."""

    dtype = torch.float16


class BF16Compressor(_Narrowing):
    """Sends floating point as bfloat16, with the range of float32 and 8 bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The compressors, by the names that ``DistributedOptimizer(compression=...)`` is given."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
