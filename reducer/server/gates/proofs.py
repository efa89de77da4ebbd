"""How a lane that has connected to another lane proves itself: modes open and psk.

The accepting lane sees an ordinary connection of a worker: PROTOCOL.md, sections 12 and 13.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import cast

from reducer.core.surface.events import Dial
from reducer.server.data.connection import Connection
from reducer.wire.errors import PEER_ERRORS
from reducer.wire.handshake import (
    ANSWER_MAGIC,
    ANSWER_SIZE,
    NONCE_SIZE,
    WorkerHandshake,
    expand,
    extract,
)
from reducer.wire.header import PREFACE_MAGIC, pack_preface

# Makes the protocol of the proven connection's transport.
Begin = Callable[[Connection], asyncio.BaseProtocol]


OTHER_MODE = (
    "it answers with a preface: it is in another mode or of another version; start all reducers of "
    "a job with the same key file, certificates of one CA, or neither"
)


class DialError(Exception):
    """The other lane cannot be reached, or one side has refused the other's proof."""


class Proof:
    """One for each lane, of its mode."""

    async def prove(self, sock: socket.socket, host: str, dial: Dial) -> Begin:
        """Prove this reducer to the lane at the other end of ``sock``, and check that lane's proof.

        ``host`` is the name that the address has, without brackets. Raises DialError, or OSError if
        the connection breaks. ``sock`` remains the caller's.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the threads, if there are any, without waiting for them."""


class OpenProof(Proof):
    """Mode open: a preface, and no proof."""

    async def prove(self, sock: socket.socket, host: str, dial: Dial) -> Begin:
        await asyncio.get_running_loop().sock_sendall(sock, pack_preface(dial.lane))
        return plainly


class KeyProof(Proof):
    """Mode psk. ``key`` is the key of the key file."""

    def __init__(self, key: bytes) -> None:
        self._extracted = extract(key)

    async def prove(self, sock: socket.socket, host: str, dial: Dial) -> Begin:
        loop = asyncio.get_running_loop()
        key = expand(self._extracted, dial.job)
        nonce = secrets.token_bytes(NONCE_SIZE)
        handshake = WorkerHandshake(key, dial.job, dial.lane, nonce)
        await loop.sock_sendall(sock, handshake.opening)
        answer = await receive(sock, len(ANSWER_MAGIC))
        if answer == PREFACE_MAGIC:
            raise DialError(OTHER_MODE)
        if answer == ANSWER_MAGIC:
            answer += await receive(sock, ANSWER_SIZE - len(answer))
        try:
            proof = handshake.proof(answer)
        except PEER_ERRORS as error:
            raise DialError(f"{error}; give both reducers the same key file") from None
        await loop.sock_sendall(sock, proof)
        return plainly


def plainly(connection: Connection) -> asyncio.BaseProtocol:
    """The connection itself is the transport's protocol."""
    return cast(asyncio.BaseProtocol, connection)


async def receive(sock: socket.socket, size: int) -> bytes:
    """Read exactly ``size`` bytes; what follows them stays in the socket."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        more = await loop.sock_recv(sock, size - len(data))
        if not more:
            raise DialError("it closed the connection before it proved its key")
        data += more
    return data
