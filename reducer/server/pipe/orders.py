"""The queue of orders to a lane process: first questions, then sockets, last the drain.

Law: new connections do not delay an answer. A socket that waits for too long is closed: its worker
dials again, and a stranger holds no descriptor while a lane is down.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import NamedTuple

ORDER_KEY = b"K"  # only in mode psk: the first order, sent once
ORDER_SOCKET = b"S"  # with the preface of the socket
ORDER_PING = b"P"
ORDER_REPORT = b"R"
ORDER_DRAIN = b"D"

WAIT_SECONDS = 2.0  # as long as for a preface


class Order(NamedTuple):
    data: bytes
    sock: socket.socket | None = None
    until: float = 0.0


class Orders:
    """At most ``room`` sockets wait; ``late`` counts the sockets that were closed."""

    def __init__(self, room: int) -> None:
        self.expired = 0
        self._room = room
        self._questions: deque[Order] = deque()
        self._sockets: deque[Order] = deque()
        self._drain: deque[Order] = deque()

    def ask(self, question: bytes) -> None:
        self._questions.append(Order(question))

    def waits(self, question: bytes) -> bool:
        """Whether the question was not sent to the lane yet."""
        return any(order.data == question for order in self._questions)

    def take(self, sock: socket.socket, preface: bytes, now: float) -> bool:
        """Queue a socket. Returns False without room; the socket is then still the caller's."""
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

    def sent(self) -> None:
        """The first order was sent; the lane has its own copy of the order's socket."""
        self._close(self._first_queue().popleft())

    def close_late(self, now: float) -> bool:
        """Close the sockets that have waited too long. Returns whether others wait."""
        while self._sockets and self._sockets[0].until <= now:
            self.expired += 1
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
