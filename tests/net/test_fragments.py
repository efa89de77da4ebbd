"""Fragmentation: a lane gives back the free memory between chunks that stay allocated."""

from __future__ import annotations

from contextlib import ExitStack

from reducer.core.limits.charges import MIN_COST
from reducer.wire import messages
from reducer.wire.codes import Collective, DType, ErrorCode, MessageKind, ReduceOp
from reducer.wire.header import Header
from tests.support.cluster import Daemon, anonymous
from tests.support.frames import control, frame
from tests.support.worker import Worker

MEMORY = 64 << 20
RANKS = 12
TABLE = ((0, 2 << 20),)
SIZES = (500_000, 540_000, 1_200_000)


class Fragmenting:
    """Ranks that fill their credit with rounds of one chunk, and abandon some of them."""

    def __init__(self, ranks: list[Worker]) -> None:
        self._ranks = ranks
        self._used = 0  # bytes of credit that each rank has used
        self._number = 0

    def fill(self, *sizes: int) -> list[tuple[int, int]]:
        """Send chunks of these sizes in turn from all ranks; returns (round, size) of each."""
        made = []
        cost = sum(max(MIN_COST, size) for size in sizes)
        while self._used + cost <= self._ranks[0].most:
            made += [(self._number + place, size) for place, size in enumerate(sizes)]
            new = made[-len(sizes) :]
            for rank in range(RANKS):
                self._send(rank, b"".join(_chunk(rank, *one) for one in new))
            self._number += len(sizes)
            self._used += cost
        return made

    def abandon(self, made: list[tuple[int, int]]) -> None:
        """Abandon the rounds on every rank, so that the lane forgets them.

        One round after the other: the ABANDON of a rank takes room for records.
        """
        for number, _ in made:
            said = b"".join(_abandon(key, number) for key in range(RANKS))
            for rank in range(RANKS):
                self._send(rank, said)
            for worker in self._ranks:
                _settle(worker)
        self._used -= sum(max(MIN_COST, size) for _, size in made)

    def _send(self, rank: int, data: bytes) -> None:
        self._ranks[rank].links[0].sock.sendall(data)
        for worker in self._ranks:  # sends heartbeats
            worker.poll(0.0)


def _settle(worker: Worker) -> None:
    """Return when the lane has taken all that the worker has sent."""
    worker.links[0].sock.sendall(frame(Header(MessageKind.STATS)))
    while all(answer.header.kind != MessageKind.STATS for _, answer in worker.poll()):
        pass


def _chunk(rank: int, number: int, size: int) -> bytes:
    header = Header(
        MessageKind.CONTRIBUTION, dtype=DType.UINT8, op=ReduceOp.SUM,
        collective=Collective.ALL_REDUCE, rank=rank, key=rank, round=number, count=size,
    )  # fmt: skip
    return frame(header, b"\1" * size)


def _abandon(key: int, number: int) -> bytes:
    return control(messages.Abandon(int(ErrorCode.MISMATCH), ""), key=key, round=number)


def test_holes_between_chunks_that_stay_are_not_kept() -> None:
    """Regression: malloc kept the holes, so a lane with a budget of 64 MiB grew by 102 MiB."""
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon("--memory", f"{MEMORY}", "--credit", "4MiB"))
        ranks = [Worker(daemon.port, "j", rank, RANKS, table=TABLE) for rank in range(RANKS)]
        for worker in ranks:
            stack.enter_context(worker).start()
        for worker in ranks:
            worker.join_started()
        lane = daemon.lane_pid(0)
        before = anonymous(lane)
        job = Fragmenting(ranks)
        job.abandon(job.fill(2 << 20))
        job.abandon(job.fill(SIZES[0], 4)[::2])
        for size in SIZES[1:]:
            job.abandon(job.fill(size)[::2])
        assert anonymous(lane) - before < 1.3 * MEMORY
        daemon.kill()
