"""Local ranks that all-reduce through the plugin's CollNet, as the nodes of a job would."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from reducer_tools.children import describe_exit
from reducer_tools.nccl.rank import Place, Said, work

_EXIT_SECONDS = 10.0


class TrialError(Exception):
    """A step failed; ``said`` is what each rank came to in it."""

    def __init__(self, step: str, said: Sequence[Said]) -> None:
        super().__init__(step)
        self.step = step
        self.said = said

    @property
    def culprit(self) -> Said:
        """The others' errors follow from that of a rank whose process has ended."""
        failed = [said for said in self.said if said.error]
        return next((said for said in failed if said.ended), failed[0])


class Trial:
    """The ranks of one trial; a context manager that leaves no process behind.

    The steps are to be called in their order. Each raises TrialError where a rank comes no further.
    """

    def __init__(self, places: Sequence[Place], seconds: float) -> None:
        self._seconds = seconds
        context = multiprocessing.get_context("spawn")
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        for place in places:
            here, there = context.Pipe()
            process = context.Process(target=work, args=(there, os.getpid(), place), daemon=True)
            process.start()
            there.close()
            self._ranks.append((process, here))

    def init(self) -> list[Said]:
        """Every rank loads the library and calls init."""
        return self._hear("init")

    def connect(self) -> list[Said]:
        """The ranks exchange their handles and meet at the reducers."""
        self._tell("connect", [said.value for said in self._hear("connect")])
        return self._hear("connect")

    def all_reduce(self) -> list[Said]:
        """Each value is the number of wrong elements by type."""
        self._tell("all-reduce", None)
        return self._hear("all-reduce")

    def close(self) -> None:
        """The ranks leave the reducers, as those of a job do, and their processes end well."""
        self._tell("close", None)
        self._hear("close")
        for process, _ in self._ranks:
            process.join(_EXIT_SECONDS)
            if process.exitcode != 0:
                raise TrialError("close", [_ended("close", process)])

    def _tell(self, step: str, message: Any) -> None:
        said = [self._tell_one(step, rank, message) for rank in range(len(self._ranks))]
        if any(one.error for one in said):
            raise TrialError(step, said)

    def _tell_one(self, step: str, rank: int, message: Any) -> Said:
        process, connection = self._ranks[rank]
        try:
            connection.send(message)
        except OSError:
            return _ended(step, process)
        return Said(step)

    def _hear(self, step: str) -> list[Said]:
        deadline = time.monotonic() + self._seconds
        said = [self._hear_one(step, rank, deadline) for rank in range(len(self._ranks))]
        if any(one.error for one in said):
            raise TrialError(step, said)
        return said

    def _hear_one(self, step: str, rank: int, deadline: float) -> Said:
        process, connection = self._ranks[rank]
        try:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                return Said(step, error=f"the rank said nothing for {self._seconds:g} s")
            said: Said = connection.recv()
        except (EOFError, ConnectionError):
            return _ended(step, process)
        return said

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process, connection in self._ranks:
            process.kill()
            process.join()
            connection.close()


def _ended(step: str, process: BaseProcess) -> Said:
    process.join(_EXIT_SECONDS)
    return Said(step, error=f"the process {describe_exit(process.exitcode)}", ended=True)
