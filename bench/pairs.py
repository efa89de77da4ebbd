"""Pairs of a server and its workers that sum the same arrays in the same case, and take turns.

Two pairs are programs in C (bench/reference): ``FLOOR`` moves and adds the bytes and does nothing
else, and ``C`` also checks and computes the CRC-32C of every chunk. ``OURS`` is `reducer serve
--lanes 1` with every check on, and the Python client. All programs live for the whole run, in
namespaces with one congestion control. Every sum is checked.

A batch is the unit of measurement: all workers get their order at the same time, and exchange the
rounds of the batch one right after the other.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from bench.fleet import ROOT, Fleet, FleetError, OneHost, Place, cpu_seconds
from reducer_tools.netlab import Lab, Nic

_Side = TypeVar("_Side")
FLOOR, C, OURS = "floor", "C", "ours"
_BUILT = ROOT / "build" / "reference"
_SERVER = "reducer"  # the host of all servers, and of the workers if there is no rate


@dataclass(frozen=True)
class Case:
    """What all pairs of a run share; ``rounds`` is the number of rounds of a batch."""

    workers: int
    bytes: int
    chunk_bytes: int
    window_bytes: int
    rounds: int
    in_place: bool
    congestion: str
    rate: str | None = None
    unix: bool = False

    @property
    def worker_hosts(self) -> list[str]:
        return [f"worker{rank}" if self.rate else _SERVER for rank in range(self.workers)]

    @property
    def network(self) -> str:
        """The network and the sockets, for the title of a table."""
        where = f"NICs of {self.rate}" if self.rate else "loopback"
        sockets = ", ours over Unix sockets" if self.unix else ""
        return f"{where}, {self.congestion}{sockets}"


@dataclass(frozen=True)
class Batch:
    """The result of a batch.

    ``lane_cpu`` and ``worker_cpu`` are the CPU seconds of the server, and of all workers together
    during the exchanges. ``seconds`` is the median time of a round at the slowest worker.
    """

    lane_cpu: float
    worker_cpu: float
    seconds: float


@dataclass(frozen=True)
class Pair:
    """A running server and its workers; ``cpu_seconds`` returns the server's CPU time so far."""

    cpu_seconds: Callable[[], float]
    workers: list[subprocess.Popen[str]]

    def run(self) -> Batch:
        """Run one batch."""
        before = self.cpu_seconds()
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        seconds, used = zip(
            *(map(float, rest.split()) for rest in self.expect("done")), strict=True
        )
        return Batch(self.cpu_seconds() - before, sum(used), max(seconds))

    def expect(self, word: str) -> list[str]:
        """Wait until every worker has printed ``word``; returns the rest of each line."""
        lines = [_read_line(worker) for worker in self.workers]
        for line in lines:
            if not line.startswith(word):
                raise FleetError(f"a worker said {line!r}, expected {word!r}")
        return [line.removeprefix(word) for line in lines]


@contextmanager
def open_pairs(case: Case, *names: str) -> Iterator[dict[str, Pair]]:
    """Start the named pairs; they end on exit. Raises `LabError` and `FleetError`."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "bench" / "reference")], check=True)
    hosts = dict.fromkeys([_SERVER, *case.worker_hosts], Nic(case.rate))
    with Lab(hosts, case.congestion) as lab, Fleet(_place(case, lab)) as fleet:
        pairs = {
            name: _start_ours(case, fleet) if name == OURS else _start_c(case, fleet, name == C)
            for name in names
        }
        for pair in pairs.values():
            pair.expect("ready")
        yield pairs


def _place(case: Case, lab: Lab) -> Place:
    return lab if case.rate else OneHost(lab, _SERVER)


def in_turns(pairs: Mapping[str, _Side], turns: int) -> Iterator[tuple[int, str, _Side]]:
    """Every pair in every turn. The order changes, so that no pair always follows the same one."""
    for turn in range(turns):
        for name in list(pairs)[:: 1 if turn % 2 == 0 else -1]:
            yield turn, name, pairs[name]


def verdict(what: str, ratio: float, peer: str, limit: float) -> str:
    """A line that says whether ours, at ``ratio`` times the peer, is within its limit."""
    word = "within" if ratio <= limit else "OVER"
    return f"{what}: ours at {ratio:.3f} x {peer}, {word} the limit of {limit}"


def _start_c(case: Case, fleet: Fleet, crc: bool) -> Pair:
    address, world, chunk = fleet.address(_SERVER), str(case.workers), str(case.chunk_bytes)
    program = [str(_BUILT / "reducer"), address, world, chunk, str(int(crc)), case.congestion]
    server = _start(fleet, _SERVER, program)
    numbers = (case.bytes, case.chunk_bytes, case.window_bytes, case.rounds, crc, case.in_place)
    load = [str(_BUILT / "load"), address, _read_line(server)]
    rest = [world, *(str(int(number)) for number in numbers), case.congestion]
    return Pair(lambda: cpu_seconds(server.pid), _start_workers(case, fleet, load, rest))


def _start_ours(case: Case, fleet: Fleet) -> Pair:
    options = ["--credit", str(case.window_bytes), "--congestion", case.congestion]
    (address,) = fleet.start_reducers([_SERVER], "--memory", "1GiB", *options)
    module = [sys.executable, "-m", "bench.pair_worker", address]
    numbers = (case.workers, case.bytes, case.chunk_bytes, case.rounds, case.in_place, case.unix)
    rest = [str(int(number)) for number in numbers]
    return Pair(fleet.reducer_cpu_seconds, _start_workers(case, fleet, module, rest))


def _start_workers(
    case: Case, fleet: Fleet, program: list[str], rest: list[str]
) -> list[subprocess.Popen[str]]:
    return [
        _start(fleet, host, [*program, str(rank), *rest])
        for rank, host in enumerate(case.worker_hosts)
    ]


def _start(fleet: Fleet, host: str, command: list[str]) -> subprocess.Popen[str]:
    return fleet.start(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise FleetError(f"{process.args!r} has ended: its error is above")
    return line.strip()
