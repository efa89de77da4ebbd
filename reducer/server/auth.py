"""The gate of a lane in mode psk: connections whose worker has not proven its key yet.

Law: a newcomer costs a few hundred bytes and two seconds at most, and there are never more than
256 of them; it has no decoder, no session, and nothing of a job. Once it has proven the key its
transport goes over to an ordinary Connection, and nothing of this module is left on the way of a
frame.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from typing import cast

from reducer.errors import PEER_ERRORS, AuthenticationError
from reducer.log import RateLimit
from reducer.server.listening import peer_name
from reducer.server.protocol import Connection
from reducer.wire.handshake import NONCE_SIZE, LaneHandshake, extract

logger = logging.getLogger("reducer.auth")

PROOF_SECONDS = 2.0  # the value of NATS, as for prefaces
MAX_NEWCOMERS = 256

Admit = Callable[[str], Connection]


class Gate:
    """Runs the handshakes of one lane; ``refused`` counts by cause those that came to nothing.

    ``admit`` makes the connection of a worker that has proven the key of the job it names.
    """

    def __init__(self, key: bytes, lane: int, incarnation: bytes, admit: Admit) -> None:
        self.refused: Counter[str] = Counter()
        self.admit = admit
        self._extracted = extract(key)
        self._lane = lane
        self._incarnation = incarnation
        self._newcomers: dict[Newcomer, None] = {}  # the oldest first
        self._limit = RateLimit(1.0)

    def __len__(self) -> int:
        return len(self._newcomers)

    def newcomer(self, preface: bytes) -> Newcomer:
        """The protocol object for a connection that began with these bytes."""
        nonce = secrets.token_bytes(NONCE_SIZE)
        return Newcomer(
            self,
            LaneHandshake(self._extracted, preface, self._lane, self._incarnation, nonce),
        )

    def enter(self, newcomer: Newcomer) -> None:
        if len(self._newcomers) >= MAX_NEWCOMERS:
            oldest = next(iter(self._newcomers))
            oldest.refuse("crowded", "it has proven no key, and others wait for the place")
        self._newcomers[newcomer] = None

    def leave(self, newcomer: Newcomer) -> bool:
        """False if it had left already."""
        if newcomer not in self._newcomers:
            return False
        del self._newcomers[newcomer]
        return True

    def note(self, cause: str, peer: str, text: str) -> None:
        self.refused[cause] += 1
        held = self._limit.admit(asyncio.get_running_loop().time())
        if held is not None:
            more = f" ({held} more since the last such line)" if held else ""
            logger.warning("refused %s (%s): %s%s", peer, cause, text, more)

    def close(self) -> None:
        """Cut everybody off who waits."""
        for newcomer in list(self._newcomers):
            newcomer.refuse("ending", "this reducer ends")


class Newcomer(asyncio.BufferedProtocol):
    """One connection, from its preface to its proof. Whoever fails is cut off without a word."""

    __slots__ = ("_gate", "_handshake", "_peer", "_timer", "_transport")

    def __init__(self, gate: Gate, handshake: LaneHandshake) -> None:
        self._gate = gate
        self._handshake = handshake
        self._peer = ""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PROOF_SECONDS, self._on_deadline)
        self._gate.enter(self)
        try:
            self._peer = peer_name(transport.get_extra_info("socket"))
        except OSError:
            self.refuse("left", "it was gone at once")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._handshake.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing():
            return
        try:
            answer = self._handshake.received(nbytes)
        except PEER_ERRORS as error:
            cause = "forged" if isinstance(error, AuthenticationError) else "garbage"
            self.refuse(cause, str(error))
            return
        if answer:
            self._transport.write(answer)
        if self._handshake.done:
            self._hand_over()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._end():
            return
        text = "it closed the connection before it had proven a key"
        if self._handshake.job:
            text += (
                f" for job {self._handshake.job!r}, after our own proof: its key is another one, "
                "or it is no worker of ours"
            )
        self._gate.note("left", self._peer, text)

    def refuse(self, cause: str, text: str) -> None:
        """Cut it off, count and log why."""
        if self._end():
            self._gate.note(cause, self._peer, text)
            self._transport.abort()

    def _hand_over(self) -> None:
        self._end()
        connection = self._gate.admit(self._handshake.job)
        self._transport.set_protocol(cast(asyncio.BufferedProtocol, connection))
        connection.connection_made(self._transport)

    def _on_deadline(self) -> None:
        self.refuse("slow", f"no proof of a key came in {PROOF_SECONDS:g} s")

    def _end(self) -> bool:
        self._timer.cancel()
        return self._gate.leave(self)
