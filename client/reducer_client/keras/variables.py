"""A Keras model's trained variables as the tensors of a table: their names, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from reducer_client.arrays import Array

DTYPES = ("float32", "bfloat16", "float16")


def find_variables(model: Any) -> dict[str, Any]:
    """The trained variables of a model, by their paths.

    Raises TypeError for a model or a variable that no table can hold, and ValueError if the model
    is not built, or if its variables are not ones that the reducers can update.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model: expected a keras.Model, got {type(model).__name__}")
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} is not built: build it before the optimizer is made "
            "(model.build(input_shape), keras.Input, or a call on a batch)"
        )
    found: dict[str, Any] = {}
    for variable in model.trainable_variables:
        if variable.path in found:
            raise ValueError(
                f"the model {model.name!r} has two variables {variable.path!r}: give their layers "
                "different names"
            )
        _check(variable)
        found[variable.path] = variable
    if not found:
        raise ValueError(f"the model {model.name!r} has no trainable variables")
    return found


def first_values(variables: Mapping[str, Any]) -> dict[str, Array]:
    """The values of variables as a table takes them: float32, in host memory."""
    return {
        path: np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")))
        for path, variable in variables.items()
    }


def shapes_of(variables: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {path: tuple(variable.shape) for path, variable in variables.items()}


def _check(variable: Any) -> None:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if dtype not in DTYPES:
        raise TypeError(
            f"variable {variable.path!r}: expected {', '.join(DTYPES)}, got {dtype}: tables are "
            "float32"
        )
    if variable.constraint is not None:
        raise ValueError(
            f"variable {variable.path!r} has the constraint "
            f"{type(variable.constraint).__name__}, which the reducers do not apply: make its "
            "layer without, or regularize the loss"
        )
