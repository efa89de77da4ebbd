"""Makes the workers that found a job equal: all take over the state of one of them.

The bytes go through all_reduce: the other ranks contribute zeros. A broadcast would fail as soon as
a worker is lost. An all_reduce goes on, and its ledger tells whether the sender is in the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]  # ships no stubs
import numpy as np

from reducer_client.arrays import Array, flat_bytes
from reducer_client.elastic.layout import Layout, layout_from
from reducer_client.elastic.state import State
from reducer_client.group import Group, wait_or_end

_KEY = "elastic/founding"
_RUN = 32 << 20  # bytes of small arrays that travel together


def share(group: Group, state: State) -> None:
    """Give all members the state of the lowest rank. All members call this before their first step.

    If the sender is lost meanwhile, the lowest rank that is left sends. All ranks decide alike,
    because the ledgers are equal on all ranks. Raises ReducerErrors.
    """
    sender = 0
    while True:
        sharing = _Sharing(group, sender)
        try:
            sharing.run(state)
            return
        except _SenderLostError:  # nothing of the state has changed
            sender = min(sharing.left)


class _SenderLostError(Exception):
    pass


class _Sharing:
    """One attempt. ``left`` are the ranks that are in all sums so far."""

    def __init__(self, group: Group, sender: int) -> None:
        self._group = group
        self._sender = sender
        self.left = frozenset(range(group.world_size))

    def run(self, state: State) -> None:
        arrays, rest, header = state.arrays(), dict[str, Array](), b""
        if self._sends:
            further, metadata = state.rest()
            rest.update(further)
            header = msgpack.packb([Layout.of(rest).fields(), dict(metadata)])
        size = self._copy([np.array([len(header)], np.int64)])[0]
        packed = np.frombuffer(header, np.uint8) if header else np.empty(int(size[0]), np.uint8)
        fields, metadata = msgpack.unpackb(self._copy([packed])[0].tobytes())
        if not self._sends:
            parts = layout_from(fields).parts
            rest = {part.name: np.empty(part.shape, part.dtype) for part in parts}
        values = [*arrays.values(), *rest.values()]
        copies = [copy for run in _runs(values) for copy in self._copy(run)]
        if not self._sends:
            for value, copy in zip(values, copies, strict=True):
                flat_bytes(value)[:] = flat_bytes(copy)
            state.load(arrays, rest, metadata)

    @property
    def _sends(self) -> bool:
        return self._group.rank == self._sender

    def _copy(self, arrays: Sequence[Array]) -> list[Array]:
        """The sender's values of these arrays. Raises _SenderLostError."""
        sizes = [array.nbytes for array in arrays]
        flat = np.zeros(sum(sizes), np.uint8)
        if self._sends:
            flat = np.concatenate([flat_bytes(array) for array in arrays])
        if flat.size:
            work = self._group.all_reduce(flat, op="bor", key=_KEY, out=flat)
            wait_or_end(self._group, lambda: work)
            for entry in work.ledger:
                self.left &= set(entry.members)
        if self._sender not in self.left:
            raise _SenderLostError
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return [
            part.view(array.dtype).reshape(array.shape)
            for part, array in zip(parts, arrays, strict=True)
        ]


def _runs(arrays: Sequence[Array]) -> list[list[Any]]:
    """The arrays in their order, in runs of at most _RUN bytes or one array."""
    runs: list[list[Any]] = []
    room = 0
    for array in arrays:
        if array.nbytes > room or not runs:
            runs.append([])
            room = _RUN
        runs[-1].append(array)
        room -= array.nbytes
    return runs
