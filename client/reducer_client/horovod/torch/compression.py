"""Compressors: convert a tensor before it is sent, and convert its reduction back.

A compressor of your own is a class with the same two static methods. If it has a ``wire_dtype``,
float32 is sent in these blocks for Average and Sum.
"""

from __future__ import annotations

from typing import Any

import torch

from reducer_client.quantized import BlocksName


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


class _Quantising(Compressor):
    """Sends floating point as float32 in blocks of ``wire_dtype``, and all other tensors as is."""

    wire_dtype: BlocksName

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.float() if tensor.dtype.is_floating_point else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class Int8Compressor(_Quantising):
    """Sends 8 bits an element, and a scale for 256 elements; results come back as bfloat16."""

    wire_dtype = "int8"


class Float8E4M3FNCompressor(_Quantising):
    """As ``Int8Compressor``, in float8_e4m3fn: finer for elements far below the largest one."""

    wire_dtype = "float8_e4m3fn"


class E3M0Compressor(_Quantising):
    """Sends 4 bits an element: a sign and a power of two."""

    wire_dtype = "e3m0"


class Compression:
    """The compressors, by the names that ``DistributedOptimizer(compression=...)`` is given."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    float8_e4m3fn = Float8E4M3FNCompressor
    e3m0 = E3M0Compressor
