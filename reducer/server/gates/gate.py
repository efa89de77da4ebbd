"""The gate of a lane that demands a proof: holds connections whose worker has not given one yet.

Law: a newcomer costs what its mode allows and two seconds at most, and there are never more than
256 of them, or an eighth of the descriptors; it has no decoder, no session, and nothing of a job.
The loop does only a part of a crowd's handshakes at a time, so that jobs need not wait. After the
proof the newcomer's transport belongs to an ordinary Connection, with a permit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import cast

from reducer.core.surface.permit import Permit
from reducer.log import RateLimit
from reducer.server import descriptors
from reducer.server.data.connection import Connection, clock
from reducer.server.data.turns import SHARED_SECONDS
from reducer.server.sockets import peer_name

logger = logging.getLogger("reducer.auth")

PROOF_SECONDS = 2.0  # the value of NATS, as for prefaces
MAX_NEWCOMERS = 256

Admit = Callable[[Permit | None], Connection]


class Gate:
    """Knows the newcomers of one lane; ``refused`` counts by cause those that came to nothing.

    ``admit`` makes the connection of a worker that may join what its permit says; None: anything.
    """

    def __init__(self, admit: Admit) -> None:
        self.refused: Counter[str] = Counter()
        self.admit = admit
        self._newcomers: dict[Newcomer, None] = {}  # the oldest first
        self._room = descriptors.room_for_newcomers(MAX_NEWCOMERS)
        self._limit = RateLimit(1.0)
        self._waiting: deque[Newcomer] = deque()
        self._lost: deque[Newcomer] = deque()
        self._is_due = False
        self._worked = 0.0  # seconds, without a pause
        self._worked_at = 0.0

    def __len__(self) -> int:
        return len(self._newcomers)

    def newcomer(self, preface: bytes) -> Newcomer:
        """The protocol object for a connection that began with these bytes."""
        raise NotImplementedError

    def enter(self, newcomer: Newcomer) -> None:
        if len(self._newcomers) >= self._room:
            oldest = next(iter(self._newcomers))
            oldest.refuse("crowded", "it has proven nothing, and others wait for the place")
        self._newcomers[newcomer] = None

    def leave(self, newcomer: Newcomer) -> bool:
        """False if it had left already."""
        if newcomer not in self._newcomers:
            return False
        del self._newcomers[newcomer]
        return True

    def work_for(self, newcomer: Newcomer) -> bool:
        """Do a step of its handshake; False: it is done in one of the next turns of the loop."""
        if not self._waiting and self._has_time():
            self._spend(newcomer.go_on)
            return True
        self._waiting.append(newcomer)
        self._go_on_soon()
        return False

    def tick(self) -> None:
        """Let the loop come to those who wait, should that have failed before."""
        self._go_on_soon()

    def forget_soon(self, newcomer: Newcomer) -> None:
        """Its connection is lost. A crowd may leave in one moment, with 0.1 ms for each."""
        self._lost.append(newcomer)
        if len(self._lost) > self._room:
            self._lost.popleft().forget()
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if (self._waiting or self._lost) and not self._is_due:
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
        while self._lost and self._worked < SHARED_SECONDS:
            self._spend(self._lost.popleft().forget)
        self._go_on_soon()

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
    """One connection from its preface to its proof: the part that all modes share.

    An error of our own ends the connection, and the worker dials again. The event loop would keep
    the connection, or hide an OSError.
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
            if error.errno in descriptors.NO_MEMORY:
                raise
            self.refuse("left", "it was gone at once")

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if not self._transport.is_closing():
                self._take_bytes(nbytes)
        except Exception as error:
            self._fail(error)

    def _take_bytes(self, nbytes: int) -> None:
        """The next part of its proof has come: ask the gate to work for it."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Go on with what has come."""
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
        """Release what the mode's newcomer holds; no more bytes come."""

    def refuse(self, cause: str, text: str) -> None:
        """Cut it off, count and log why."""
        if self._end():
            self._transport.abort()
            self._gate.note(cause, self._peer, text)

    def _fail(self, error: Exception) -> None:
        self._transport.abort()
        self._end()
        what = f"a bug of ours, connection of {self._peer} ends"
        asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})

    def _why_it_left(self) -> str:
        return "it closed the connection before it had proven anything"

    def _on_deadline(self) -> None:
        self.refuse("slow", f"no proof came in {PROOF_SECONDS:g} s")

    def _end(self) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        return self._gate.leave(self)
