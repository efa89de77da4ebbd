"""Which newcomer makes room at the gate of a lane."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest

from reducer.core.surface.permit import Permit
from reducer.server.data.connection import Connection
from reducer.server.gates import gate
from reducer.server.gates.gate import Gate, Newcomer


def nobody(permit: Permit | None) -> Connection:
    raise AssertionError("nobody has proven anything")


async def crowd(count: int, stack: ExitStack) -> tuple[Gate, list[socket.socket]]:
    """Newcomers on real sockets, and the peers' ends, in the order of arrival."""
    loop = asyncio.get_running_loop()
    door = Gate(nobody)
    ends = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ends.append(stack.enter_context(theirs))
        await loop.connect_accepted_socket(lambda: Newcomer(door), ours)
    return door, ends


async def first_leaves(count: int) -> None:
    with ExitStack() as stack:
        door, ends = await crowd(count, stack)
        loop = asyncio.get_running_loop()
        assert await asyncio.wait_for(loop.sock_recv(ends[0], 1), 10) == b""
        for end in ends[1:]:
            with pytest.raises(BlockingIOError):
                end.recv(1)
        assert door.refused == {"crowded": 1}
        assert len(door) == count - 1
        door.close()
        await asyncio.wait_for(loop.sock_recv(ends[-1], 1), 10)


def test_the_oldest_newcomer_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a crowd that fills the gate once would keep out later workers."""
    monkeypatch.setattr(gate, "MAX_NEWCOMERS", 3)
    asyncio.run(first_leaves(4))
