"""Calls from a training step into Python, compiled or not, on each backend of Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from reducer_client.arrays import Array

Function = Callable[..., Sequence[Array]]


def call_in_order(
    owner: object, function: Function, tensors: Sequence[Any], like: Sequence[Any]
) -> list[Any]:
    """Call ``function`` with the values of the tensors; the calls of an owner keep program order.

    Args:
        owner: the object whose calls run one after another. It must support weak references.
        function: takes and returns NumPy arrays.
        like: tensors of the shapes and dtypes of the results.

    Raises the function's error; TensorFlow and JAX raise their own error with the text in compiled
    code. Raises NotImplementedError where TensorFlow compiles with XLA.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from reducer_client import tensorflow

        shapes, dtypes = [each.shape for each in like], [each.dtype for each in like]
        return tensorflow.call_in_order(owner, function, tensors, shapes, dtypes)
    if backend == "jax":
        from reducer_client import jax

        return jax.call_in_order(function, tensors, like)
    results = function(*(keras.ops.convert_to_numpy(tensor) for tensor in tensors))
    return [keras.ops.convert_to_tensor(result) for result in results]


def as_dense(gradient: Any) -> Any:
    """The gradient of an ``Embedding`` names rows; this makes it dense."""
    if keras.backend.backend() == "tensorflow":
        from reducer_client import tensorflow

        return tensorflow.as_dense([gradient])[0]
    return keras.ops.convert_to_tensor(gradient, sparse=False)


def check_backend() -> None:
    """Raises ValueError if the backend of Keras is not one of those above."""
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax", "torch"):
        raise ValueError(
            f"the backend of Keras is {backend!r}: expected tensorflow, jax or torch; set "
            "KERAS_BACKEND"
        )
