"""Slow links in user space: a rate and a delay between each worker and its reducers.

    with Links(["127.0.0.1:4711"], workers=4, link=Link("100mbit", 0.030)) as links:
        links.addresses[0]        # what worker 0 connects to

    python -m bench.slow_links.link --workers 4     # what TCP reaches over such links, and the CPU

A kernel with netem could do this, but many have none (``tc qdisc add ... netem``: "Specified qdisc
kind is unknown"). This is a TCP proxy in a thread of this process. All connections of a worker
share its link, which has a `Line` for each direction. The model is kind: no loss, no slow start,
and no worker disturbs another.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import struct
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import uvloop

from reducer_tools.netlab import PAYLOAD_SHARE, Nic

# 5 ms of 100 Mbit/s. Smaller pieces would cost more CPU, which the workers need.
_PIECE = 1 << 16
# Nothing more is read while the line has bytes for so many seconds: the queue before a link. With
# less, a line idles when other processes take the core of this thread.
_AHEAD = 0.020
# The pieces of a connection under way and not yet taken, as the window of TCP limits them: 4 MiB.
_WINDOW = (4 << 20) // _PIECE
_RESET = struct.pack("ii", 1, 0)
_END = b""


@dataclass(frozen=True)
class Link:
    """``rate`` has tc's syntax and counts the headers of TCP/IP; ``rtt`` in seconds."""

    rate: str = "100mbit"
    rtt: float = 0.030

    @property
    def bytes_per_second(self) -> float:
        """The payload that each direction carries. Raises ValueError for a rate that is none."""
        return (Nic(self.rate).bytes_per_second or 0.0) * PAYLOAD_SHARE

    def seconds(self, size: int) -> float:
        """From the first byte's start to the last byte's arrival of ``size`` bytes, one way."""
        return size / self.bytes_per_second + self.rtt / 2


class Line:
    """One direction of a link: bytes leave one after another, and all take the same time."""

    def __init__(self, link: Link) -> None:
        self._rate = link.bytes_per_second
        self._delay = link.rtt / 2
        self._free = 0.0
        self.carried = 0  # bytes so far

    async def send(self, size: int) -> float:
        """Wait until the line can take the bytes; returns the loop's time of their arrival."""
        now = asyncio.get_running_loop().time
        while (ahead := self._free - now() - _AHEAD) > 0:
            await asyncio.sleep(ahead)
        self._free = max(self._free, now()) + size / self._rate
        self.carried += size
        return self._free + self._delay


class Links:
    """A link for each worker to the same reducers; a context manager.

    Attributes:
        addresses: for each worker the addresses that stand for the reducers' ones.
    """

    def __init__(self, reducers: Sequence[str], workers: int, link: Link) -> None:
        self.lines = [(Line(link), Line(link)) for _ in range(workers)]  # up, down
        self._reducers = [_parse(address) for address in reducers]
        self._servers = [
            [socket.create_server(("127.0.0.1", 0)) for _ in reducers] for _ in range(workers)
        ]
        self.addresses = [
            [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
            for servers in self._servers
        ]
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- in the loop's thread -------------------------------------------------------------------

    async def _listen(self) -> None:
        for lines, servers in zip(self.lines, self._servers, strict=True):
            for server, reducer in zip(servers, self._reducers, strict=True):
                server.setblocking(False)
                self._spawn(self._accept(server, reducer, lines))

    async def _end(self) -> None:
        while tasks := [*self._tasks]:  # a task that ends may have spawned another
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for servers in self._servers:
            for server in servers:
                server.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(
        self, server: socket.socket, reducer: tuple[str, int], lines: tuple[Line, Line]
    ) -> None:
        while True:
            worker, _ = await self._loop.sock_accept(server)
            self._spawn(_connect(worker, reducer, lines))


async def _connect(
    worker: socket.socket, address: tuple[str, int], lines: tuple[Line, Line]
) -> None:
    """Carry the bytes of a connection until both sides have ended it, or one has failed."""
    reducer = socket.socket()
    try:
        for sock in (worker, reducer):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(reducer, address)
        async with asyncio.TaskGroup() as both:
            for line, source, sink in zip(lines, (worker, reducer), (reducer, worker), strict=True):
                pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_WINDOW)
                both.create_task(_depart(source, line, pieces))
                both.create_task(_arrive(sink, pieces))
    except* (OSError, asyncio.CancelledError):
        for sock in (worker, reducer):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    finally:
        worker.close()
        reducer.close()


async def _depart(
    source: socket.socket, line: Line, pieces: asyncio.Queue[tuple[float, bytes]]
) -> None:
    loop = asyncio.get_running_loop()
    data = None
    while data != _END:
        data = await loop.sock_recv(source, _PIECE)
        await pieces.put((await line.send(len(data)), data))


async def _arrive(sink: socket.socket, pieces: asyncio.Queue[tuple[float, bytes]]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        at, data = await pieces.get()
        await asyncio.sleep(at - loop.time())
        if data == _END:
            sink.shutdown(socket.SHUT_WR)
            return
        await loop.sock_sendall(sink, data)


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


# --- what the links reach ---------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """``rates``: payload of each worker in bytes/s; ``round_trip``: of one byte, in seconds."""

    rates: list[float]
    round_trip: float


def calibrate(link: Link, workers: int, seconds: float) -> Reached:
    """Each worker sends as fast as it can, for ``seconds``, to a server that sends all back."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Links([f"127.0.0.1:{server.getsockname()[1]}"], workers, link) as links,
    ):
        peers = []
        for (address,) in links.addresses:
            near = socket.create_connection(_parse(address))
            peers.append((near, server.accept()[0]))
        round_trip = _ping(*peers[0])
        rates = [0.0] * workers
        threads = [threading.Thread(target=_mirror, args=(far,)) for _, far in peers]
        threads += [threading.Thread(target=_flood, args=(near, seconds)) for near, _ in peers]

        def take(rank: int) -> None:
            rates[rank] = _rate(peers[rank][0])

        threads += [threading.Thread(target=take, args=(rank,)) for rank in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for pair in peers:
            for sock in pair:
                sock.close()
    return Reached(rates, round_trip)


def _ping(near: socket.socket, far: socket.socket) -> float:
    began = time.perf_counter()
    near.sendall(b"1")
    far.sendall(far.recv(1))
    near.recv(1)
    return time.perf_counter() - began


def _mirror(peer: socket.socket) -> None:
    while data := peer.recv(1 << 18):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


def _flood(peer: socket.socket, seconds: float) -> None:
    data = bytes(1 << 16)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


def _rate(peer: socket.socket) -> float:
    """Bytes per second between the first and the last that came."""
    total = -len(peer.recv(1 << 16))
    began = ended = time.perf_counter()
    while data := peer.recv(1 << 18):
        total, ended = total + len(data), time.perf_counter()
    return total / max(ended - began, 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.slow_links.link")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--rtt-ms", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    link = Link(options.rate, options.rtt_ms / 1e3)
    cpu = time.process_time()
    reached = calibrate(link, options.workers, options.seconds)
    cpu = time.process_time() - cpu
    best = link.bytes_per_second
    print(f"round trip {reached.round_trip * 1e3:.1f} ms, CPU {cpu / options.seconds:.2f} cores")
    for rank, rate in enumerate(reached.rates):
        print(f"worker {rank}: {rate / 1e6:6.2f} MB/s each way at once, {rate / best:6.1%}")


if __name__ == "__main__":
    main()
