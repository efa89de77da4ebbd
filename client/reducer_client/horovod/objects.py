"""Broadcasts and gathers Python objects, as pickles."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np

from reducer_client.arrays import Array
from reducer_client.horovod.arrays import allgather, broadcast, broadcast_async
from reducer_client.horovod.basics import rank
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.synchronous import ends_on_interrupt

__all__ = ["allgather_object", "broadcast_object"]

_LENGTH = struct.Struct("<q")


@ends_on_interrupt
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of ``root_rank`` on all ranks, pickled. The root gets its own object back.

    Args:
        root_rank: a global rank, also for a process set.
        name: name of the operation, equal on all ranks. Needed only if several threads call at
            once.
    """
    name = name or "broadcast_object"
    sends = rank() == root_rank
    data = _bytes(pickle.dumps(obj)) if sends else np.empty(0, np.uint8)
    size = broadcast(np.array([data.size]), root_rank, f"{name}.sz", process_set)
    room = data if sends else np.empty(int(size[0]), np.uint8)
    broadcast_async(room, root_rank, f"{name}.t", process_set, out=room).wait()
    return obj if sends else pickle.loads(room.data)


@ends_on_interrupt
def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, pickled, in the order of the ranks."""
    data = pickle.dumps(obj)
    framed = _bytes(_LENGTH.pack(len(data)) + data)
    gathered = allgather(framed, name or "allgather_object", process_set).tobytes()
    objects, at = [], 0
    while at < len(gathered):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(gathered, at)[0]
        objects.append(pickle.loads(gathered[start:at]))
    return objects


def _bytes(data: bytes) -> Array:
    return np.frombuffer(bytearray(data), np.uint8)
