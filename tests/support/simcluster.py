"""Engine states and lanes in one process, connected by links with random delays and cuts.

Every link delivers in order, as TCP does. The seed decides which link moves next, and how many
bytes. The same seed gives the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import engine_parts
import numpy as np

from reducer.kernels import KernelSet
from reducer.wire.checks import ChunkTable
from tests.support.simlane import SimLane, SimSession

# Settings of a cluster that are not settings of its lanes.
OF_THE_JOB = {
    "table",
    "seed",
    "kernels",
    "job",
    "silence",
    "digest_every",
    "weights",
    "hosted",
    "elastic",
}


class StuckError(Exception):
    """Nothing moves any more, although operations are not finished."""


class SimCluster:
    """`world_size` engine states and `lanes_by_slot` real lanes; pumping advances `now`."""

    def __init__(
        self,
        world_size: int,
        lanes_by_slot: tuple[int, ...] = (1,),
        table: ChunkTable = ((0, 65_536),),
        seed: int = 0,
        kernels: KernelSet | None = None,
        job: str = "job",
        silence: float = 30.0,
        digest_every: int = 0,
        weights: tuple[int, ...] = (),
        hosted: tuple[tuple[int, ...], ...] = (),
        elastic: bool = False,
        **lane_settings: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.lanes = {
            (slot, lane): SimLane(
                kernels,
                lane=lane,
                lanes=lanes,
                incarnation=bytes([slot, lane]) * 8,
                **lane_settings,
            )
            for slot, lanes in enumerate(lanes_by_slot)
            for lane in range(lanes)
        }
        self.states = [
            engine_parts.State(
                reducers=len(lanes_by_slot),
                job=job,
                run_id="run" if rank == 0 or elastic else "",
                rank=rank,
                world_size=world_size,
                chunk_table=list(table),
                connect_timeout=30.0,
                silence=silence,
                digest_every=digest_every,
                weights=list(weights) if rank == 0 else [],
                hosted=hosted,
                elastic=elastic,
            )
            for rank in range(world_size)
        ]
        self.sessions: dict[tuple[int, int, int], SimSession] = {}
        # Lanes that hold this many bytes stop reading, which reserved room must prevent.
        self.stop_reading_at: int | None = None
        self.cut = 0  # most bytes of one move; 0: random for every move

    # --- driving --------------------------------------------------------------------------------

    def join(self) -> None:
        self.pump(lambda: all(state.joined for state in self.states))

    def leave(self) -> None:
        """Every rank says BYE once its results are stable everywhere, and closes."""
        for state in self.states:
            state.leave(self.now)
        self.pump(lambda: all(state.left for state in self.states))
        while self.step():
            pass
        for session in self.sessions.values():
            session.disconnect()
        self.sessions.clear()

    def pump(self, until: Callable[[], bool], idle_seconds: float = 2.0) -> None:
        """Move bytes until `until()`.

        Raises StuckError after `idle_seconds` of simulated time without a contribution, a join or a
        result: heartbeats are no progress.
        """
        mark, marked_at = self._progress(), self.now
        while not until():
            if self.step():
                continue
            self.pass_time(0.05)
            progress = self._progress()
            if progress != mark:
                mark, marked_at = progress, self.now
            elif self.now - marked_at > idle_seconds:
                raise StuckError(self.report())

    def _progress(self) -> tuple[int, ...]:
        jobs = [job for lane in self.lanes.values() for job in lane.snapshot()["jobs"].values()]
        return (
            sum(state.joined for state in self.states),
            sum(job["contributions"] for job in jobs),
            sum(job["results"] for job in jobs),
        )

    def settle(self, seconds: float) -> None:
        """Let simulated time pass and handle all events."""
        end = self.now + seconds
        while self.now < end:
            while self.step():
                pass
            self.pass_time(0.05)

    def step(self) -> bool:
        """Make one pass over all links in random order. Returns whether a byte has moved."""
        self._connect()
        moved = False
        links = list(self.sessions.items())
        self.random.shuffle(links)
        for (rank, reducer, lane), session in links:
            if not self._moves(rank, reducer):
                continue
            state = self.states[rank]
            if session.closed is None and self._reads(reducer, lane):
                data = state.outgoing(reducer, lane, self._limit(), self.now)
                if data:
                    session.send(data)
                    moved = True
            data = session.take(self._limit())
            if data:
                state.incoming(reducer, lane, data, self.now)
                moved = True
            elif session.closed is not None and not session.outbox:
                state.closed(reducer, lane, session.closed, self.now)
                session.disconnect(session.closed)
                del self.sessions[rank, reducer, lane]
                moved = True
        return moved

    def _runs(self, reducer: int) -> bool:
        return True

    def _moves(self, rank: int, reducer: int) -> bool:
        """Whether bytes pass between the rank and the reducer now."""
        return True

    def _reads(self, reducer: int, lane: int) -> bool:
        limit = self.stop_reading_at
        held = self.lanes[reducer, lane].held
        return limit is None or sum(len(buffer.view) for buffer in held) < limit

    def _limit(self) -> int:
        return self.cut or self.random.choice((1 << 20, 1 << 17, 40_000, 5_000, 77))

    def _connect(self) -> None:
        for rank, state in enumerate(self.states):
            for reducer, lane in state.wanted():
                self.sessions[rank, reducer, lane] = self.lanes[reducer, lane].connect()
                state.opened(reducer, lane, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for (slot, _), lane in self.lanes.items():
            if self._runs(slot):
                lane.now = self.now
                lane.tick(0.0)
        for state in self.states:
            state.tick(self.now)

    # --- operations -----------------------------------------------------------------------------

    def submit(
        self,
        rank: int,
        key: str,
        source: np.ndarray | None,
        target: np.ndarray | None,
        *,
        collective: int = 1,
        op: int = 1,
        dtype: int = 1,
        wide: bool = False,
        root: int = 0,
        count: int | None = None,
        residual: np.ndarray | None = None,
        stochastic: bool = False,
    ) -> Any:
        """Submit an operation of one rank; `count` defaults to the elements of `source`."""
        if count is None:
            assert source is not None
            count = source.size
        return self.states[rank].submit(
            collective, op, dtype, wide, key, root, count, source, target,
            residual=residual, stochastic=stochastic,
        )  # fmt: skip

    def finish(self, operations: list[Any]) -> None:
        """Pump until all operations are finished; their errors stay on them."""
        self.pump(lambda: all(operation.done for operation in operations))

    def report(self) -> str:
        lines = [f"{place}: {lane.snapshot()['jobs']}" for place, lane in self.lanes.items()]
        lines += [
            f"rank {rank}: {state.counters()} {state.error}"
            for rank, state in enumerate(self.states)
        ]
        return "\n".join(lines)

    @property
    def held(self) -> int:
        """The number of buffers held by all lanes."""
        return sum(len(lane.held) for lane in self.lanes.values())
