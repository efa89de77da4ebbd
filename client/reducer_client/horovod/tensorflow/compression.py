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


class Compression:
    """The compressors. A class of your own with the same two static methods works as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
