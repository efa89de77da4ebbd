"""The state that a worker which joins gets from the others: arrays, and plain metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import msgpack  # type: ignore[import-untyped]  # ships no stubs
import numpy as np

from reducer_client.arrays import Array, flat_bytes
from reducer_client.elastic.layout import Layout, layout_from
from reducer_client.errors import IntegrityError, JoinError
from reducer_client.group import Group, wait_or_end

# The most bytes of the header: 100,000 tensors with long names.
_MOST_HEADER = 64 << 20


class State(Protocol):
    """What makes two workers equal. The same names on all ranks.

    `arrays` are what every worker has from its start, such as a model's parameters; two workers
    whose arrays differ in name, shape or dtype cannot train together. `rest` is what a worker may
    lack, such as an optimizer's moments.
    """

    def arrays(self) -> Mapping[str, Array]:
        """The arrays, to be read or to be overwritten in place."""

    def rest(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """Further arrays, and metadata of plain values (None, bool, int, float, str, bytes, lists
        and dicts of these)."""

    def load(self, arrays: Mapping[str, Array], rest: Mapping[str, Array], metadata: Any) -> None:
        """Take over another worker's state. ``arrays``: what `arrays` returned, filled with it."""


class ArrayState:
    """The state of a program that has its parameters in NumPy arrays."""

    def __init__(self, arrays: Mapping[str, Array], metadata: dict[str, Any] | None = None) -> None:
        self._arrays = dict(arrays)
        self.metadata = {} if metadata is None else metadata

    def arrays(self) -> Mapping[str, Array]:
        return self._arrays

    def rest(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        return {}, self.metadata

    def load(self, arrays: Mapping[str, Array], rest: Mapping[str, Array], metadata: Any) -> None:
        self.metadata.clear()
        self.metadata.update(metadata)


def layout_of(state: State | None) -> Layout:
    return Layout([]) if state is None else Layout.of(state.arrays())


def send(group: Group, state: State, step: int, root: int) -> None:
    """Broadcast the state and the step to all ranks of the group. Raises ReducerErrors."""
    arrays, (rest, metadata) = state.arrays(), state.rest()
    digest = _digest([*arrays.values(), *rest.values()])
    layouts = (Layout.of(arrays).fields(), Layout.of(rest).fields())
    header = msgpack.packb([step, *layouts, dict(metadata), digest])
    size = np.array([len(header)], np.int64)
    wait_or_end(group, lambda: group.broadcast(size, root, out=size))
    packed = np.frombuffer(header, np.uint8)
    wait_or_end(group, lambda: group.broadcast(packed, root))
    for array in (*arrays.values(), *rest.values()):
        _broadcast(group, array, root)


def receive(group: Group, state: State, root: int) -> int:
    """Take over the state of the root. Returns its step.

    Raises JoinError if the root has other arrays than this worker, IntegrityError if the arrays
    that came are not those that the root sent, and other ReducerErrors.
    """
    size = np.zeros(1, np.int64)
    wait_or_end(group, lambda: group.broadcast(size, root, out=size))
    if not 0 < size[0] <= _MOST_HEADER:
        raise IntegrityError(f"rank {root} announced a state with a header of {size[0]:,} bytes")
    packed = np.zeros(int(size[0]), np.uint8)
    wait_or_end(group, lambda: group.broadcast(packed, root, out=packed))
    step, theirs, of_rest, metadata, digest = msgpack.unpackb(packed.tobytes())
    arrays = state.arrays()
    if differs := Layout.of(arrays).difference(layout_from(theirs)):
        raise JoinError(f"this worker's state is not that of rank {root}: {differs}")
    rest = {part.name: np.empty(part.shape, part.dtype) for part in layout_from(of_rest).parts}
    for array in (*arrays.values(), *rest.values()):
        _broadcast(group, array, root)
    if _digest([*arrays.values(), *rest.values()]) != digest:
        raise IntegrityError(
            f"the state that rank {root} sent is not what came: memory or a reducer corrupted bits"
        )
    state.load(arrays, rest, metadata)
    return int(step)


def ignore(group: Group, root: int) -> None:
    """Take part in the broadcasts without a use for their arrays."""
    size = np.zeros(1, np.int64)
    wait_or_end(group, lambda: group.broadcast(size, root, out=size))
    packed = np.zeros(int(size[0]), np.uint8)
    wait_or_end(group, lambda: group.broadcast(packed, root, out=packed))
    _, theirs, of_rest, _, _ = msgpack.unpackb(packed.tobytes())
    for part in layout_from([*theirs, *of_rest]).parts:
        _broadcast(group, np.empty(part.shape, part.dtype), root)


def _broadcast(group: Group, array: Array, root: int) -> None:
    flat = array.reshape(-1)
    if not np.shares_memory(flat, array) and array.size:
        raise ValueError(f"an array of the state, of shape {array.shape}, is not contiguous")
    wait_or_end(group, lambda: group.broadcast(flat, root, out=flat))


def _digest(arrays: list[Array]) -> bytes:
    total = hashlib.sha256()
    for array in arrays:
        total.update(flat_bytes(np.ascontiguousarray(array)))
    return total.digest()
