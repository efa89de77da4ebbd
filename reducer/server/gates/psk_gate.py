"""The gate of mode psk. A newcomer that fails is cut off without an ERROR.

After the proof, no code of this module is on the path of a frame.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import cast

from reducer.core.surface.permit import ANY_RANK, Permit
from reducer.server.gates.gate import Admit, Gate, Newcomer
from reducer.wire.errors import PEER_ERRORS, AuthenticationError
from reducer.wire.handshake import NONCE_SIZE, LaneHandshake, extract


class PskGate(Gate):
    """Runs the psk handshakes of one lane. A newcomer holds a few hundred bytes."""

    def __init__(self, key: bytes, lane: int, incarnation: bytes, admit: Admit) -> None:
        super().__init__(admit)
        self._extracted = extract(key)
        self._lane = lane
        self._incarnation = incarnation

    def newcomer(self, preface: bytes) -> PskNewcomer:
        nonce = secrets.token_bytes(NONCE_SIZE)
        return PskNewcomer(
            self,
            LaneHandshake(self._extracted, preface, self._lane, self._incarnation, nonce),
        )


class PskNewcomer(Newcomer):
    __slots__ = ("_handshake", "_is_held", "_received")

    def __init__(self, gate: Gate, handshake: LaneHandshake) -> None:
        super().__init__(gate)
        self._handshake = handshake
        self._received = 0  # bytes that the handshake was not given yet
        self._is_held = False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._handshake.get_buffer()

    def _take_bytes(self, nbytes: int) -> None:
        self._received = nbytes
        if not self._gate.work_for(self):
            self._is_held = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        if self._is_held:
            self._is_held = False
            self._transport.resume_reading()
        try:
            answer = self._handshake.received(self._received)
        except PEER_ERRORS as error:
            cause = "forged" if isinstance(error, AuthenticationError) else "garbage"
            self.refuse(cause, str(error))
            return
        if answer:
            self._transport.write(answer)
        if self._handshake.done:
            self._hand_over()

    def _why_it_left(self) -> str:
        text = "it closed the connection before it proved its key"
        if self._handshake.job:
            text += (
                f" for job {self._handshake.job!r}, after this reducer had proved its own: it has "
                "another key, or it is not a worker"
            )
        return text

    def _hand_over(self) -> None:
        self._end()
        connection = self._gate.admit(Permit("key", ((self._handshake.job, ANY_RANK),)))
        self._transport.set_protocol(cast(asyncio.BufferedProtocol, connection))
        connection.connection_made(self._transport)
