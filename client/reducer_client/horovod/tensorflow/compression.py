"""What tensors travel as: ``Compression.none`` and ``Compression.fp16``."""

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
        """The tensor as it was before ``compress``, as far as that is possible."""
        return tensor


class FP16Compressor:
    """Sends floating point as float16. What is beyond 65504 on any rank, or in sum, is Inf."""

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
    """What tensors travel as; a class with the same two static methods will do as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
