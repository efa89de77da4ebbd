"""The workers of one job and run that use tables on this lane, and their connections."""

from __future__ import annotations

from typing import Final

from reducer.wire.errors import JoinError

READER: Final = -1  # the number of readers, which only pull
# The number of a worker's earlier starts that are remembered and told that they were replaced.
SEALED: Final = 16


class Seat:
    """One connection for tables. `worker` is READER for a reader.

    `unanswered`: bytes of its pushes and pulls that were not answered. `credit`: their limit.
    """

    __slots__ = ("credit", "incarnation", "session", "unanswered", "worker")

    def __init__(self, session: int, worker: int, incarnation: bytes, credit: int) -> None:
        self.session = session
        self.worker = worker
        self.incarnation = incarnation
        self.credit = credit
        self.unanswered = 0

    def __str__(self) -> str:
        return "a reader" if self.worker == READER else f"worker {self.worker}"


class Worker:
    """A worker's present incarnation. `seat`: its connection; None since `gone_at`.

    `is_in`: it takes part in clocks and steps. `has_left`: it has said goodbye.
    """

    __slots__ = ("gone_at", "has_left", "incarnation", "is_in", "number", "sealed", "seat")

    def __init__(self, number: int, incarnation: bytes) -> None:
        self.number = number
        self.incarnation = incarnation
        self.sealed: list[bytes] = []
        self.seat: Seat | None = None
        self.gone_at = 0.0
        self.is_in = True
        self.has_left = False


class Workers:
    """Workers by number."""

    def __init__(self) -> None:
        self._of: dict[int, Worker] = {}

    def find(self, number: int) -> Worker | None:
        return self._of.get(number)

    def all(self) -> list[Worker]:
        return list(self._of.values())

    def sessions(self) -> tuple[int, ...]:
        """The connections of all workers that take part."""
        return tuple([w.seat.session for w in self._of.values() if w.seat is not None and w.is_in])

    def enter(self, seat: Seat) -> tuple[Worker, Seat | None, bool]:
        """Take in a worker's connection.

        Returns the worker, the connection that this one replaces, and whether the worker's program
        was started again: then the updates of the earlier start are sealed. Raises JoinError for a
        start that was replaced.
        """
        worker = self._of.get(seat.worker)
        if worker is None:
            worker = self._of[seat.worker] = Worker(seat.worker, seat.incarnation)
            worker.seat = seat
            return worker, None, True
        if seat.incarnation in worker.sealed:
            raise JoinError(
                f"another process is worker {seat.worker} now: give each worker a number of its own"
            )
        replaced, worker.seat = worker.seat, seat
        is_new = seat.incarnation != worker.incarnation
        if is_new:
            worker.sealed = [*worker.sealed[1 - SEALED :], worker.incarnation]
            worker.incarnation = seat.incarnation
        worker.is_in = True
        worker.has_left = False
        return worker, replaced, is_new

    def learn(self, number: int, incarnation: bytes) -> None:
        """The worker's present start, which another lane has seen."""
        worker = self._of.get(number)
        if worker is None:
            self._of[number] = Worker(number, incarnation)
        elif worker.incarnation != incarnation:
            worker.sealed = [*worker.sealed[1 - SEALED :], worker.incarnation]
            worker.incarnation = incarnation

    def leave(self, seat: Seat, now: float) -> Worker | None:
        """The connection has ended. Returns its worker, if this was the worker's connection."""
        worker = self._of.get(seat.worker)
        if worker is None or worker.seat is not seat:
            return None
        worker.seat = None
        worker.gone_at = now
        return worker
