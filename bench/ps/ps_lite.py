"""Starts a parameter server on ps-lite: the program of `bench/ps/pslite` in all its roles."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping

from bench.fleet import ROOT, Fleet, FleetError
from bench.ps.cluster import HOST, Case, Cluster, Worker

PROGRAM = ROOT / "build" / "pslite" / "pushpull"
ADDRESS = "127.0.0.1"


class PsLite:
    """The nodes of one job. ``copy``: the servers answer with copies of their sums.

    ``extra``: further variables of ps-lite. ``quiet`` drops what the nodes say about failures.
    Raises `FleetError` if the program was not built.
    """

    def __init__(
        self,
        fleet: Fleet,
        case: Case,
        copy: bool = False,
        extra: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        if not PROGRAM.exists():
            raise FleetError(
                f"{PROGRAM.relative_to(ROOT)} is missing: make -C bench/ps/pslite PS_LITE=FOLDER, "
                "where FOLDER is a checkout of ps-lite (bench/README.md)"
            )
        self._fleet = fleet
        self._errors = subprocess.DEVNULL if quiet else None
        self._command = [str(PROGRAM), str(case.bytes), str(case.key_bytes), str(int(copy))]
        self._environment = {
            "DMLC_NUM_WORKER": str(case.workers),
            "DMLC_NUM_SERVER": str(case.servers),
            "DMLC_PS_ROOT_URI": ADDRESS,
            "DMLC_PS_ROOT_PORT": str(_free_port()),
            "DMLC_NODE_HOST": ADDRESS,
            **(extra or {}),
        }
        self._start("scheduler")
        servers = [self.start_server() for _ in range(case.servers)]
        workers = [Worker(self._start("worker")) for _ in range(case.workers)]
        self.cluster = Cluster(servers, workers)

    def start_server(self) -> subprocess.Popen[str]:
        return self._start("server")

    def _start(self, role: str) -> subprocess.Popen[str]:
        environment = {**self._environment, "DMLC_ROLE": role}
        pipe = subprocess.PIPE
        return self._fleet.start(
            HOST, self._command, environment, stdin=pipe, stdout=pipe, stderr=self._errors
        )


def _free_port() -> int:
    """A port for the scheduler: ps-lite must know the number before the scheduler listens."""
    with socket.create_server((ADDRESS, 0)) as server:
        port: int = server.getsockname()[1]
    return port
