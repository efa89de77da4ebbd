"""Orders and answers between the coordinator and its workers: JSON lines over a Unix socket.

A Unix socket with a path works across network namespaces and uses none of the measured NICs. Every
order goes to all workers, and every worker answers every order with one line.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

Message = dict[str, Any]
# A round of 256 MiB over 100 Mbit NICs takes 40 s.
_ANSWER_SECONDS = 300.0
_CHECK_SECONDS = 0.5


class CrewError(Exception):
    """A worker has ended or does not answer; its output is on stderr."""


class Crew:
    """The coordinator's end of the sockets."""

    def __init__(self, workers: int, path: Path) -> None:
        self._workers = workers
        self.path = path
        self._stack = ExitStack()
        self._channels: list[_Channel] = []

    def __enter__(self) -> Crew:
        family = socket.AF_UNIX
        server = socket.create_server(str(self.path), family=family, backlog=self._workers)
        self._server = self._stack.enter_context(server)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.close()

    def meet(self, seconds: float, check: Callable[[], None]) -> list[Message]:
        """Wait for all workers; returns their first messages by rank.

        ``check`` is called while waiting, and raises if a worker cannot connect any more.
        """
        met: dict[int, tuple[_Channel, Message]] = {}
        deadline = time.monotonic() + seconds
        self._server.settimeout(_CHECK_SECONDS)
        while len(met) < self._workers:
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                check()
                if time.monotonic() > deadline:
                    absent = sorted(set(range(self._workers)) - set(met))
                    raise CrewError(f"workers {absent}: not there within {seconds:g} s") from None
                continue
            connection.settimeout(_ANSWER_SECONDS)
            channel = _Channel(connection)
            self._stack.callback(channel.close)
            word = next(channel.messages())
            met[word["rank"]] = (channel, word)
        self._channels = [met[rank][0] for rank in range(self._workers)]
        return [met[rank][1] for rank in range(self._workers)]

    def order(self, what: str, **details: Any) -> list[Message]:
        """Send an order to all workers; returns their answers by rank. Raises `CrewError`."""
        for channel in self._channels:
            with suppress(ConnectionError):  # the read below reports it
                channel.send({"order": what, **details})
        return [_answer(rank, channel, what) for rank, channel in enumerate(self._channels)]


class Duty:
    """A worker's end of the socket."""

    def __init__(self, path: str, rank: int, **facts: Any) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self._channel = _Channel(connection)
        self.answer(rank=rank, **facts)

    def __enter__(self) -> Duty:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def orders(self) -> Iterator[Message]:
        """Yield orders until the coordinator closes the socket."""
        return self._channel.messages()

    def answer(self, **details: Any) -> None:
        self._channel.send(details)


def _answer(rank: int, channel: _Channel, order: str) -> Message:
    try:
        return next(channel.messages())
    except TimeoutError:
        why = f"did not answer within {_ANSWER_SECONDS:g} s"
    except (StopIteration, ConnectionError):
        why = "ended"
    raise CrewError(f"worker {rank} {why} when ordered to {order}")


class _Channel:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile(encoding="utf-8")

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    def send(self, message: Message) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[Message]:
        for line in iter(self._reader.readline, ""):
            yield json.loads(line)
