"""Calls functions of NumPy arrays with the values of tensors, and translates their errors.

In eager mode an error has two base classes: its class in the Horovod layer, and the class of
tf.errors that programs written for Horovod catch. In a tf.function TensorFlow raises a
tf.errors.OpError with the text of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from reducer_client.arrays import Array
from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.horovod.process_sets import global_process_set
from reducer_client.horovod.synchronous import ends_on_interrupt
from reducer_client.tensorflow import call_in_order

# TensorFlow has no types here.
# mypy: disable-error-code="misc"


class FailedPreconditionError(HorovodInternalError, tf.errors.FailedPreconditionError):
    """A HorovodInternalError that TensorFlow programs can catch as their own."""

    def __init__(self, message: str, **attributes: Any) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)
        HorovodInternalError.__init__(self, message, **attributes)


class InvalidArgumentError(ValueError, tf.errors.InvalidArgumentError):
    """A ValueError that TensorFlow programs can catch as their own."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)
        self.args = (message,)


def run(
    function: Callable[..., Sequence[Array]],
    tensors: Sequence[Any],
    shapes: Sequence[Any],
    dtypes: Sequence[Any] | None = None,
) -> list[Any]:
    """Call ``function`` with the values of the tensors, as ``call_in_order`` does.

    The owner of all calls of the Horovod layer is the global process set, so they run in the order
    of the program.

    Raises, eagerly:
        FailedPreconditionError: for every HorovodInternalError.
        InvalidArgumentError: for every ValueError.
    """
    if not tf.executing_eagerly():
        return call_in_order(global_process_set, function, tensors, shapes, dtypes)
    call = ends_on_interrupt(call_in_order)
    try:
        return call(global_process_set, function, tensors, shapes, dtypes)
    except HorovodInternalError as error:
        raise FailedPreconditionError(
            str(error), rank=error.rank, round=error.round, key=error.key, reason=error.reason
        ) from error
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
