"""The queue of orders to a lane process: questions first, then sockets, at last the drain.

Law: many new connections do not delay an answer. A socket that waits for too long is closed. Its
worker dials again, and a stranger holds no descriptor while a lane is down.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import NamedTuple

ORDER_KEY = b"K"  # of mode psk: before all others, once
ORDER_SOCKET = b"S"  # with the preface that was read from it
ORDER_PING = b"P"
ORDER_REPORT = b"R"
ORDER_DRAIN = b"D"

WAIT_SECONDS = 2.0  # as for prefaces


class Order(NamedTuple):
    data: bytes
    sock: socket.socket | None = None
    until: float = 0.0


class Orders:
    """No more than ``room`` sockets; ``late`` counts those that were closed."""

    def __init__(self, room: int) -> None:
        self.late = 0
        self._room = room
        self._questions: deque[Order] = deque()
        self._sockets: deque[Order] = deque()
        self._drain: deque[Order] = deque()

    def ask(self, question: bytes) -> None:
        self._questions.append(Order(question))

    def waits(self, question: bytes) -> bool:
        """Whether the lane has not been given it yet."""
        return any(order.data == question for order in self._questions)

    def take(self, sock: socket.socket, preface: bytes, now: float) -> bool:
        """False, and still the caller's, if there is no room."""
        if len(self._sockets) >= self._room:
            return False
        self._sockets.append(Order(ORDER_SOCKET + preface, sock, now + WAIT_SECONDS))
        return True

    def drain(self) -> None:
        if not self._drain:
            self._drain.append(Order(ORDER_DRAIN))

    def first(self) -> Order | None:
        queue = self._first_queue()
        return queue[0] if queue else None

    def given(self) -> None:
        """The first order is with the lane, which has a socket of its own for it."""
        self._close(self._first_queue().popleft())

    def close_late(self, now: float) -> bool:
        """Close the sockets whose time is over; whether others wait."""
        while self._sockets and self._sockets[0].until <= now:
            self.late += 1
            self._close(self._sockets.popleft())
        return bool(self._sockets)

    def close(self) -> None:
        while self._sockets:
            self._close(self._sockets.popleft())

    def _first_queue(self) -> deque[Order]:
        return self._questions or self._sockets or self._drain

    def _close(self, order: Order) -> None:
        if order.sock is not None:
            order.sock.close()
