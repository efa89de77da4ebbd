"""``rank()``, ``size()`` and others as scalar tensors.

A graph reads them when it runs and not when it is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from reducer_client.horovod import basics
from reducer_client.horovod.process_sets import global_process_set, usable_process_sets


def rank_op(name: str | None = None) -> Any:
    """`rank()`, an int32."""
    return _number(basics.rank, name)


def local_rank_op(name: str | None = None) -> Any:
    """`local_rank()`, an int32."""
    return _number(basics.local_rank, name)


def local_size_op(name: str | None = None) -> Any:
    """`local_size()`, an int32."""
    return _number(basics.local_size, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks of a process set, an int32.

    Raises ValueError in eager mode, and tf.errors.InvalidArgumentError in a graph, if no process
    set has this number.
    """
    return _number(lambda: _size(process_set_id), name)


def _number(function: Callable[[], int], name: str | None) -> Any:
    if tf.executing_eagerly():
        return tf.constant(function(), tf.int32)
    found = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, name=name)
    return tf.ensure_shape(found, ())


def _size(process_set_id: int) -> int:
    for process_set in (global_process_set, *usable_process_sets()):
        if process_set.process_set_id == process_set_id:
            return len(process_set.ranks)
    raise ValueError(f"process_set_id={process_set_id}: no process set has this number")
