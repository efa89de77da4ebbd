"""Reducers that a test kills, freezes and starts again at the same address."""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType

from tests.support.cluster import Daemon
from tests.support.ports import free_ports


class Reducers:
    """`count` daemons, each with a fixed port; the context manager ends those that run."""

    def __init__(self, count: int, *arguments: str, lanes: int = 1) -> None:
        self._arguments = arguments
        self._lanes = lanes
        self._ports = free_ports(count)
        self._daemons: list[Daemon | None] = [self._launch(port) for port in self._ports]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports]

    def daemon(self, index: int) -> Daemon:
        found = self._daemons[index]
        assert found is not None, f"reducer {index} does not run"
        return found

    def contributions(self, index: int) -> int:
        """How many contributions the reducer has taken for its present jobs."""
        lanes = self.daemon(index).stats()["lanes"]
        jobs = [job for lane in lanes for job in lane["core"]["jobs"].values()]
        return sum(job["contributions"] for job in jobs)

    def bytes_in(self) -> int:
        """Payload bytes that all running reducers have taken for their present jobs."""
        running = [index for index, daemon in enumerate(self._daemons) if daemon is not None]
        return sum(sum(self.lane_bytes_in(index)) for index in running)

    def lane_bytes_in(self, index: int) -> list[int]:
        """Payload bytes that a reducer has taken for its present jobs, by lane."""
        lanes = self.daemon(index).stats()["lanes"]
        return [sum(j["bytes_in"] for j in lane["core"]["jobs"].values()) for lane in lanes]

    def restart(self, index: int) -> int:
        """`terminate`, then `start`; returns the exit status."""
        status = self.terminate(index)
        self.start(index)
        return status

    def kill(self, index: int) -> None:
        """SIGKILL to the daemon; its lanes die with it."""
        self.daemon(index).kill()
        self._daemons[index] = None

    def kill_lane(self, index: int, lane: int) -> None:
        """SIGKILL to one lane; the daemon starts it again."""
        os.kill(self.daemon(index).lane_pid(lane), signal.SIGKILL)

    def strike(self, index: int) -> None:
        """SIGKILL to the daemon and its lanes at once, from any thread; call `kill` afterwards."""
        for pid in self._pids(index):
            os.kill(pid, signal.SIGKILL)

    def terminate(self, index: int) -> int:
        """SIGTERM, and wait for the drain; returns the exit status."""
        status = self.daemon(index).stop()
        self._daemons[index] = None
        return status

    def start(self, index: int) -> None:
        assert self._daemons[index] is None
        self._daemons[index] = self._launch(self._ports[index])

    def freeze(self, index: int) -> None:
        for pid in self._pids(index):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        for pid in self._pids(index):
            os.kill(pid, signal.SIGCONT)

    def _pids(self, index: int) -> list[int]:
        daemon = self.daemon(index)
        return [daemon.pid, *daemon.lane_pids()]

    def _launch(self, port: int) -> Daemon:
        return Daemon("--port", str(port), *self._arguments, lanes=self._lanes)

    def __enter__(self) -> Reducers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for daemon in self._daemons:
            if daemon is None:
                continue
            daemon.kill()
            if error is not None:
                sys.stderr.write(daemon.log)
