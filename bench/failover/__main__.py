"""Measures the time from a reducer's SIGKILL to the next result at every worker, on loopback.

The killed reducer is restarted at once, and joins again before the next kill. The first result
after a kill may be one that did not need the killed reducer; with large buckets this is rare.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

from bench.fleet import Fleet, ThisMachine
from bench.machine import facts

HOST = "this machine"


class Victims:
    """Reducers on fixed ports, which are killed one after another."""

    def __init__(self, fleet: Fleet, count: int) -> None:
        self._fleet = fleet
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self._ports = [sock.getsockname()[1] for sock in sockets]
        for sock in sockets:
            sock.close()
        self._daemons = [self._start(port) for port in self._ports]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports]

    def kill(self, index: int) -> float:
        """Kill a reducer and start it again; returns the time of the kill."""
        daemon = self._daemons[index]
        at = time.monotonic()
        daemon.kill()
        daemon.wait()
        self._daemons[index] = self._start(self._ports[index])
        return at

    def _start(self, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "reducer", "serve", "--port", str(port), "--lanes", "1"]
        command += ["--metrics-port", "0", "--log-level", "warning"]
        daemon = self._fleet.start(HOST, command, stdout=subprocess.PIPE)
        assert daemon.stdout is not None and daemon.stdout.readline()
        return daemon


def kill_in_turn(victims: Victims, count: int, pause: float, kills: list[float]) -> None:
    """Kill `count` times, about `pause` seconds apart, and append the times to `kills`."""
    rng = random.Random(1)
    for _ in range(count):
        time.sleep(pause * rng.uniform(0.8, 1.2))
        kills.append(victims.kill(rng.randrange(len(victims.addresses))))


def measure(workers: int, reducers: int, size: int, kills: int, pause: float) -> list[float]:
    """Seconds from each kill until every worker has its next result."""
    with Fleet(ThisMachine()) as fleet:
        victims = Victims(fleet, reducers)
        seconds = kills * (pause * 1.2 + 1.5) + 2
        case = {"world": workers, "addresses": victims.addresses, "bytes": size, "seconds": seconds}
        cases = [{**case, "rank": rank} for rank in range(workers)]
        killed: list[float] = []
        killer = threading.Thread(target=kill_in_turn, args=(victims, kills, pause, killed))
        came: list[list[float]] = [[] for _ in range(workers)]
        lines = fleet.run_workers([HOST] * workers, "bench.failover.worker", cases, 120.0)
        for rank, line in lines:
            came[rank].append(line["at"])
            if not killer.is_alive() and not killed and len(came[0]) > 3:
                killer.start()
        killer.join()
    rounds = [b - a for times in came for a, b in pairwise(times)]
    print(f"{len(came[0])} rounds, median {statistics.median(rounds) * 1e3:.0f} ms; no wrong sum")
    return [max(next(t for t in times if t > at) for times in came) - at for at in killed]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--reducers", type=int, default=3)
    parser.add_argument("--mebibytes", type=int, default=25)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between kills")
    options = parser.parse_args(arguments)
    took = sorted(
        measure(
            options.workers, options.reducers, options.mebibytes << 20, options.kills, options.pause
        )
    )
    print(json.dumps(facts()))
    p99 = took[min(len(took) - 1, round(0.99 * len(took)))]
    print(
        f"{len(took)} kills: p50 {statistics.median(took) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms, "
        f"most {took[-1] * 1e3:.0f} ms from SIGKILL to the next result at every worker"
    )


main()
