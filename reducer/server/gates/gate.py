"""The gate of a lane in mode psk or tls: holds connections until their workers give a proof.

Law: there are at most 256 newcomers, and at most an eighth of the descriptors. Each costs what its
mode allows and lasts two seconds at most. A newcomer has no decoder, no session and no state of a
job. The loop does only a part of the waiting handshakes at a time, so that jobs need not wait.
After the proof the newcomer's transport belongs to an ordinary Connection, with a permit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import cast

from reducer.core.surface.permit import Permit
from reducer.log import RateLimit
from reducer.server import file_descriptors
from reducer.server.data.connection import Connection, clock
from reducer.server.data.turns import SHARED_SECONDS
from reducer.server.sockets import peer_name

logger = logging.getLogger("reducer.auth")

PROOF_SECONDS = 2.0  # as for prefaces
MAX_NEWCOMERS = 256

Admit = Callable[[Permit | None], Connection]


class Gate:
    """The newcomers of one lane. ``refused``: for each cause, how many newcomers were refused.

    ``admit`` makes the connection of a worker with a permit; None permits any job.
    """

    def __init__(self, admit: Admit) -> None:
        self.refused: Counter[str] = Counter()
        self.admit = admit
        self._newcomers: dict[Newcomer, None] = {}  # the oldest first
        self._room = file_descriptors.room_for_newcomers(MAX_NEWCOMERS)
        self._limit = RateLimit(1.0)
        self._waiting: deque[Newcomer] = deque()
        self._disconnected: deque[Newcomer] = deque()
        self._is_due = False
        self._worked = 0.0  # seconds of work since the last pause
        self._worked_at = 0.0

    def __len__(self) -> int:
        return len(self._newcomers)

    def newcomer(self, preface: bytes) -> Newcomer:
        """The protocol object for a connection that began with this preface."""
        raise NotImplementedError

    def enter(self, newcomer: Newcomer) -> None:
        if len(self._newcomers) >= self._room:
            oldest = next(iter(self._newcomers))
            oldest.refuse("crowded", "it gave no proof, and another connection needs the place")
        self._newcomers[newcomer] = None

    def leave(self, newcomer: Newcomer) -> bool:
        """Returns False if the newcomer has left already."""
        if newcomer not in self._newcomers:
            return False
        del self._newcomers[newcomer]
        return True

    def work_for(self, newcomer: Newcomer) -> bool:
        """Do a step of the newcomer's handshake; False: a later pass of the loop does the step."""
        if not self._waiting and self._has_time():
            self._spend(newcomer.go_on)
            return True
        self._waiting.append(newcomer)
        self._go_on_soon()
        return False

    def tick(self) -> None:
        """Schedule the waiting work again, in case scheduling has failed."""
        self._go_on_soon()

    def forget_soon(self, newcomer: Newcomer) -> None:
        """The newcomer has disconnected. Many may leave at once, and each takes 0.1 ms."""
        self._disconnected.append(newcomer)
        if len(self._disconnected) > self._room:
            self._disconnected.popleft().forget()
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if (self._waiting or self._disconnected) and not self._is_due:
            asyncio.get_running_loop().call_soon(self._go_on)
            self._is_due = True

    def _has_time(self) -> bool:
        if clock() - self._worked_at > SHARED_SECONDS:
            self._worked = 0.0
        return self._worked < SHARED_SECONDS

    def _spend(self, work: Callable[[], None]) -> None:
        started = clock()
        work()
        self._worked_at = clock()
        self._worked += self._worked_at - started

    def _go_on(self) -> None:
        self._is_due, self._worked = False, 0.0
        while self._waiting and self._worked < SHARED_SECONDS:
            self._spend(self._waiting.popleft().go_on)
        while self._disconnected and self._worked < SHARED_SECONDS:
            self._spend(self._disconnected.popleft().forget)
        self._go_on_soon()

    def note(self, cause: str, peer: str, text: str) -> None:
        self.refused[cause] += 1
        held = self._limit.admit(asyncio.get_running_loop().time())
        if held is not None:
            more = f" ({held} more since the last such line)" if held else ""
            logger.warning("refused %s (%s): %s%s", peer, cause, text, more)

    def close(self) -> None:
        """Refuse all newcomers."""
        for newcomer in list(self._newcomers):
            newcomer.refuse("ending", "this reducer is ending")


class Newcomer(asyncio.BufferedProtocol):
    """One connection from its preface to its proof: the part that is common to all modes.

    An internal error ends the connection, and the worker dials again. The event loop would keep the
    connection, or hide an OSError.
    """

    __slots__ = ("_gate", "_peer", "_timer", "_transport", "is_made")

    def __init__(self, gate: Gate) -> None:
        self.is_made = False
        self._gate = gate
        self._peer = ""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_made = True
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._begin()
        except Exception as error:
            self._fail(error)

    def _begin(self) -> None:
        self._gate.enter(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PROOF_SECONDS, self._on_deadline)
        try:
            sock = self._transport.get_extra_info("socket")
            self._peer = peer_name(sock, sock.getpeername())
        except OSError as error:
            if error.errno in file_descriptors.NO_MEMORY:
                raise
            self.refuse("left", "it closed the connection at once")

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if not self._transport.is_closing():
                self._take_bytes(nbytes)
        except Exception as error:
            self._fail(error)

    def _take_bytes(self, nbytes: int) -> None:
        """The next bytes of the proof have come: ask the gate to work for this newcomer."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Handle the bytes that have come."""
        try:
            if not self._transport.is_closing():
                self._go_on()
        except Exception as error:
            self._fail(error)

    def _go_on(self) -> None:
        raise NotImplementedError

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end():
            self._gate.note("left", self._peer, self._why_it_left())
        self._gate.forget_soon(self)

    def forget(self) -> None:
        """The newcomer has disconnected: release what the mode's newcomer holds."""

    def refuse(self, cause: str, text: str) -> None:
        """Abort the connection; count and log the cause."""
        if self._end():
            self._transport.abort()
            self._gate.note(cause, self._peer, text)

    def _fail(self, error: Exception) -> None:
        self._transport.abort()
        self._end()
        what = f"internal error, connection of {self._peer} ends"
        asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})

    def _why_it_left(self) -> str:
        return "it closed the connection before it gave a proof"

    def _on_deadline(self) -> None:
        self.refuse("slow", f"no proof came in {PROOF_SECONDS:g} s")

    def _end(self) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        return self._gate.leave(self)
