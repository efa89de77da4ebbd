"""A trial: ranks on this host all-reduce through the plugin's CollNet, as nodes of a job would."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from reducer_tools.children import EXIT_SECONDS, Worker, describe_exit, start_workers
from reducer_tools.nccl.rank import RankSpec, StepResult, work


class TrialError(Exception):
    """A step failed. ``results`` has the result of the step on each rank."""

    def __init__(self, step: str, results: Sequence[StepResult]) -> None:
        super().__init__(step)
        self.step = step
        self.results = results

    @property
    def culprit(self) -> StepResult:
        """The failed result to report as the cause.

        If the process of a rank has ended, the result of this rank is the cause: the other ranks
        fail because they wait for it. Otherwise the cause is the first failed result.
        """
        failed = [result for result in self.results if result.error]
        return next((result for result in failed if result.ended), failed[0])


@contextmanager
def start_trial(specs: Sequence[RankSpec], seconds: float) -> Generator[Trial]:
    """Start the ranks, which have ``seconds`` for each step. On exit all processes end."""
    with start_workers(work, [(spec,) for spec in specs], duplex=True) as ranks:
        yield Trial(ranks, seconds)


class Trial:
    """The ranks of one trial.

    Call the steps in the order of the methods. Each step raises TrialError if it fails on a rank.
    """

    def __init__(self, ranks: Sequence[Worker], seconds: float) -> None:
        self._ranks = ranks
        self._seconds = seconds

    def init(self) -> list[StepResult]:
        """Step 1: every rank loads the library and calls init."""
        return self._receive("init")

    def connect(self) -> list[StepResult]:
        """Step 2: the ranks exchange their handles and connect to the reducers."""
        self._send("connect", [result.value for result in self._receive("connect")])
        return self._receive("connect")

    def all_reduce(self) -> list[StepResult]:
        """Step 3: the ranks all-reduce. Each value has the number of wrong elements by type."""
        self._send("all-reduce", None)
        return self._receive("all-reduce")

    def close(self) -> None:
        """Step 4: the ranks leave the reducers, and their processes end with status 0."""
        self._send("close", None)
        self._receive("close")
        for process, _ in self._ranks:
            process.join(EXIT_SECONDS)
            if process.exitcode != 0:
                raise TrialError("close", [_ended("close", process)])

    def _send(self, step: str, message: Any) -> None:
        results = [self._send_one(step, rank, message) for rank in range(len(self._ranks))]
        if any(one.error for one in results):
            raise TrialError(step, results)

    def _send_one(self, step: str, rank: int, message: Any) -> StepResult:
        process, connection = self._ranks[rank]
        try:
            connection.send(message)
        except OSError:
            return _ended(step, process)
        return StepResult(step)

    def _receive(self, step: str) -> list[StepResult]:
        deadline = time.monotonic() + self._seconds
        results = [self._receive_one(step, rank, deadline) for rank in range(len(self._ranks))]
        if any(one.error for one in results):
            raise TrialError(step, results)
        return results

    def _receive_one(self, step: str, rank: int, deadline: float) -> StepResult:
        process, connection = self._ranks[rank]
        try:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                return StepResult(step, error=f"the rank sent nothing for {self._seconds:g} s")
            result: StepResult = connection.recv()
        except (EOFError, ConnectionError):
            return _ended(step, process)
        return result


def _ended(step: str, process: BaseProcess) -> StepResult:
    return StepResult(step, error=f"the process {describe_exit(process)}", ended=True)
