"""The processes of a training: reducers and workers on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from bench.fleet import Fleet, FleetError, ThisMachine
from bench.slow_links.link import Link, Links

_SILENCE_SECONDS = 600.0
_SERVE = ("serve", "--host", "127.0.0.1", "--port", "0", "--metrics-port", "0", "--insecure")


@dataclass(frozen=True)
class Site:
    """``addresses``: of the reducers, for each worker. ``metrics``: their ports."""

    fleet: Fleet
    addresses: list[list[str]]
    metrics: list[int]

    def run(self, module: str, case: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Run a worker at each link, and yield the lines that they print. Raises FleetError."""
        with tempfile.TemporaryDirectory() as folder:
            common = {
                **case,
                "workers": len(self.addresses),
                "metrics": self.metrics,
                "store": f"{folder}/store",
            }
            cases = [
                {**common, "rank": rank, "addresses": addresses}
                for rank, addresses in enumerate(self.addresses)
            ]
            hosts = [f"w{rank}" for rank in range(len(cases))]
            yield from self.fleet.run_workers(hosts, module, cases, _SILENCE_SECONDS)


@contextmanager
def open_site(workers: int, reducers: int, link: Link | None) -> Iterator[Site]:
    """Start reducers. With a link, each worker reaches them through a link of its own."""
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(ThisMachine()))
        ready = [_start_reducer(fleet, f"r{number}") for number in range(reducers)]
        addresses = [[f"127.0.0.1:{line['port']}" for line in ready]] * workers
        if link is not None:
            addresses = stack.enter_context(Links(addresses[0], workers, link)).addresses
        yield Site(fleet, addresses, [line["metrics_port"] for line in ready])


def _start_reducer(fleet: Fleet, host: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "reducer", *_SERVE, "--log-level", "warning"]
    daemon = fleet.start(host, command, stdout=subprocess.PIPE)
    line = daemon.stdout.readline() if daemon.stdout else ""
    if not line:
        raise FleetError(f"the reducer {host} did not start")
    ready: dict[str, Any] = json.loads(line)
    return ready
