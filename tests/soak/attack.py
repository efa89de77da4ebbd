"""Strangers by the thousand, as a program: ``python -m tests.soak.attack PORT``.

Slow ones send half a preface and hold the connection; whoever is cut off comes again within 2 s.
Others send garbage and go. Prints what it did as JSON when its standard input ends. ``--sink``
is a port that closes every connection and does nothing else, and prints its number.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import select
import selectors
import socket
import struct
import sys
import time
from collections import Counter

_RESET = struct.pack("ii", 1, 0)
_BACK_SECONDS = 2.0
_TICK = 0.01
_SOURCES = 50  # addresses of 127.0.0.0/8: ports must not run out


class Attack:
    def __init__(self, port: int, slow: int, garbage: float) -> None:
        self._target = ("127.0.0.1", port)
        self._garbage = garbage
        self._garbage_due = time.monotonic()
        self._rng = random.Random(port)
        self._selector = selectors.DefaultSelector()
        self._due = [self._rng.uniform(0, _BACK_SECONDS) + time.monotonic() for _ in range(slow)]
        heapq.heapify(self._due)
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0] <= now:
            heapq.heappop(self._due)
            self._open("slow")
        while self._garbage and self._garbage_due <= now:
            self._garbage_due += 1 / self._garbage
            self._open("garbage")
        for key, events in self._selector.select(_TICK):
            assert isinstance(key.fileobj, socket.socket)
            self._go_on(key.fileobj, key.data, events)

    def close(self) -> None:
        for key in [*self._selector.get_map().values()]:
            assert isinstance(key.fileobj, socket.socket)
            self._close(key.fileobj, key.data)
        self._selector.close()

    def _open(self, kind: str) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        sock.bind((f"127.0.0.{self._rng.randint(2, 1 + _SOURCES)}", 0))
        sock.connect_ex(self._target)
        self._selector.register(sock, selectors.EVENT_WRITE, kind)

    def _go_on(self, sock: socket.socket, kind: str, events: int) -> None:
        if events & selectors.EVENT_READ:  # we are cut off
            self.done["slow ones cut off"] += 1
            return self._close(sock, kind)
        try:
            sock.send(b"ORSP" if kind == "slow" else self._rng.randbytes(200))
        except OSError:
            self.done[f"{kind} refused"] += 1
            return self._close(sock, kind)
        self.done[kind] += 1
        if kind == "garbage":
            return self._close(sock, kind)
        self._selector.modify(sock, selectors.EVENT_READ, kind)
        return None

    def _close(self, sock: socket.socket, kind: str) -> None:
        self._selector.unregister(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()
        if kind == "slow":
            heapq.heappush(self._due, time.monotonic() + self._rng.uniform(0, _BACK_SECONDS))


def _sink() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            server.accept()[0].close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.attack", description=__doc__)
    parser.add_argument("port", type=int, nargs="?")
    parser.add_argument("--slow", type=int, default=5_000)
    parser.add_argument("--garbage", type=float, default=1_000, help="a second")
    parser.add_argument("--sink", action="store_true")
    options = parser.parse_args()
    if options.sink:
        return _sink()
    attack = Attack(options.port, options.slow, options.garbage)
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        attack.step()
    seconds = time.monotonic() - began
    attack.close()
    print(json.dumps({what: times / seconds for what, times in attack.done.items()}))
    return None


if __name__ == "__main__":
    main()
