"""Variables from one rank to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from reducer_client.arrays import Array
from reducer_client.horovod import arrays
from reducer_client.horovod.handles import wait_all
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.tensorflow.calls import run


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Give all ranks of the set the values of ``root_rank``; variables are always assigned to."""
    broadcast_(variables, root_rank, None, process_set)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give all ranks of the set the values of ``root_rank``, and return them."""

    def send(*given: Array) -> list[Array]:
        names = [name and f"{name}.{index}" for index in range(len(given))]
        pairs = zip(given, names, strict=True)
        return wait_all([arrays.broadcast_async(a, root_rank, n, process_set) for a, n in pairs])

    values = [tf.convert_to_tensor(variable) for variable in variables]
    sent = run(send, values, [value.shape for value in values]) if values else []
    for variable, value in zip(variables, sent, strict=True):
        variable.assign(value)
    return sent


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Not in TensorFlow 2, which has no global variables."""
    raise NotImplementedError(
        "broadcast_global_variables: TensorFlow 2 has no global variables; use "
        "callbacks.BroadcastGlobalVariablesCallback or tensorflow.broadcast_variables"
    )
