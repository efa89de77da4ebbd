"""Compressors: convert a tensor before it is sent, and convert its reduction back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class NoneCompressor:
    """Sends the tensor itself."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that ``decompress`` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undo ``compress``, except for its rounding."""
        return tensor


class FP16Compressor:
    """Sends floating point as float16. Values and sums beyond 65504 become Inf."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the dtype to cast back to."""
        narrow = tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor
        return narrow, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Cast back."""
        return tf.cast(tensor, ctx)


class _Quantising:
    """Sends floating point as float32 in blocks of ``wire_dtype``, and all other tensors as is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        wide = tf.cast(tensor, tf.float32) if tensor.dtype.is_floating else tensor
        return wide, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


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
    """The compressors. A class of your own with the same two static methods works as well.

    If it has a ``wire_dtype``, float32 is sent in these blocks for Average and Sum.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    int8 = Int8Compressor
    float8_e4m3fn = Float8E4M3FNCompressor
    e3m0 = E3M0Compressor
