"""The loop of every storm over a simulated job: faults, repairs and checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0  # simulated seconds, longer than any deadline of the protocol


class StormLoop(ABC):
    """`repairs`: when a fault ends, and what ends it. `open`: the operations that are not done."""

    seed: int
    cluster: Any
    open: Any
    repairs: list[tuple[float, Callable[[], Any]]]

    @property
    @abstractmethod
    def submitted(self) -> bool:
        """Whether every round has begun on every rank."""

    @abstractmethod
    def submit_some(self) -> None: ...

    @abstractmethod
    def maybe_break(self) -> None: ...

    @abstractmethod
    def check(self) -> None: ...

    def repair(self) -> None:
        due = [job for at, job in self.repairs if at <= self.cluster.now]
        self.repairs = [(at, job) for at, job in self.repairs if at > self.cluster.now]
        for job in due:
            job()

    def rage(self) -> None:
        """Join, and run until nothing is open; AssertionError if no operation ends for PATIENCE."""
        cluster = self.cluster
        cluster.join()
        quiet_since = cluster.now
        while not self.submitted or self.open:
            self.submit_some()
            self.maybe_break()
            self.repair()
            before = len(self.open)
            if not cluster.step():
                cluster.pass_time(0.01)
            self.check()
            if len(self.open) != before:
                quiet_since = cluster.now
            assert cluster.now - quiet_since < PATIENCE, (
                f"I11: seed {self.seed}: {cluster.report()}"
            )
