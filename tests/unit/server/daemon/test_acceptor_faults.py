"""A listener and its sockets when the kernel or Python briefly has no memory."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reducer.server.daemon import acceptor
from reducer.server.daemon.acceptor import Acceptor


class Epoll:
    """A real epoll object whose `register` raises these failures first."""

    def __init__(self, failures: list[Exception]) -> None:
        self._epoll = select.epoll()
        self.failures = failures

    def __getattr__(self, name: str) -> object:
        return getattr(self._epoll, name)

    def register(self, fd: int, events: int) -> None:
        if self.failures:
            raise self.failures.pop()
        self._epoll.register(fd, events)


@contextmanager
def accepting() -> Iterator[tuple[Acceptor, Epoll, socket.socket]]:
    """An acceptor, its epoll object and its listener, in a running loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    one = Acceptor([listener], 1, lambda lane, sock, preface: False, "open", "127.0.0.1:1")
    one._epoll.close()
    epoll = one._epoll = Epoll([])  # type: ignore[assignment]
    one.start()
    try:
        yield one, epoll, listener
    finally:
        one.stop()


def connected(listener: socket.socket) -> socket.socket:
    peer = socket.create_connection(listener.getsockname())
    peer.setblocking(False)
    return peer


@pytest.mark.parametrize("failure", [OSError(errno.ENOMEM, "injected"), MemoryError("injected")])
def test_a_listener_that_rests_is_resumed_whatever_fails(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: no worker could connect any more."""
    monkeypatch.setattr(acceptor, "_REST_SECONDS", 0.001)

    async def run() -> None:
        with accepting() as (one, epoll, listener):
            one._rest(listener.fileno())
            epoll.failures = [failure, failure]
            async with asyncio.timeout(10):
                while one._resting:
                    await asyncio.sleep(0.001)
            with connected(listener):
                async with asyncio.timeout(10):
                    while not one._waiting:
                        await asyncio.sleep(0.001)

    asyncio.run(run())


def test_a_socket_that_nobody_would_hear_of_is_closed() -> None:
    """Regression: the socket stayed open, unread, until the next one came."""

    async def run() -> None:
        failures: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, about: failures.append(about))
        with accepting() as (one, epoll, listener):
            epoll.failures = [MemoryError("injected")]
            with connected(listener) as peer:
                async with asyncio.timeout(10):
                    assert await loop.sock_recv(peer, 1) == b""
            assert not one._waiting and len(failures) == 1

    asyncio.run(run())


def test_a_descriptor_without_memory_for_its_socket_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the descriptor stayed open, and its worker waited until its timeout."""

    def fail(*arguments: object, **more: object) -> None:
        raise MemoryError("injected")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, about: None)
        with accepting() as (_, _, listener), connected(listener) as peer:
            with monkeypatch.context() as failing:
                failing.setattr(socket, "socket", fail)
                await asyncio.sleep(0.01)
            async with asyncio.timeout(10):
                assert await loop.sock_recv(peer, 1) == b""

    asyncio.run(run())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_what_cannot_be_accepted_by_the_reserve_either_waits(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the main process called accept in a busy loop."""

    async def run() -> None:
        with accepting() as (one, _, listener):
            failure = OSError(number, "injected")
            one._refuse_one(listener, failure)  # no client waits, as if accept had failed
            assert one._resting and one._reserve is not None
            for timer in one._resting.values():
                timer.cancel()
            one._resume(listener.fileno())
            with connected(listener) as peer:
                one._refuse_one(listener, failure)
                assert not one._resting
                assert peer.recv(4_096), "no reason was sent"

    asyncio.run(run())
