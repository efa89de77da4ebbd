"""Workers get every sum once while lanes are cut off, killed and restarted at random."""

from __future__ import annotations

import random
from typing import Any

import engine_parts
import numpy as np
import pytest

from reducer.wire.codes import ErrorCode
from tests.support.model_lane import ModelLane, Session

CHUNK = 1_024
TABLE = ((0, CHUNK),)
CREDIT = 16 * 4_096
WORLD = 3
LANES = (2, 1, 2)
Link = tuple[int, int, int]  # rank, slot, lane


class Storm:
    """Three workers, three reducers, and the faults that the seed has drawn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.processes = [0] * len(LANES)
        self.lanes: dict[tuple[int, int], ModelLane] = {}
        for slot in range(len(LANES)):
            self.start(slot)
        self.states = [
            engine_parts.State(
                reducers=len(LANES), job="job", run_id="run" if rank == 0 else "", rank=rank,
                world_size=WORLD, chunk_table=list(TABLE), reducer_wait=60.0,
            )
            for rank in range(WORLD)
        ]  # fmt: skip
        self.links: dict[Link, Session] = {}
        self.frozen: dict[Link, float] = {}
        self.dials: dict[Link, float] = {}
        self.faults = 0

    def start(self, slot: int) -> None:
        incarnation = bytes([slot]) * 15 + bytes([self.processes[slot]])
        self.processes[slot] += 1
        for lane in range(LANES[slot]):
            self.lanes[slot, lane] = ModelLane(
                slot, lane, LANES, WORLD, TABLE, CREDIT, incarnation, self.now
            )

    def cut(self, link: Link, why: str = "reset") -> None:
        rank, slot, lane = link
        session = self.links.pop(link)
        session.lane.disconnect(session)
        self.frozen.pop(link, None)
        self.states[rank].closed(slot, lane, why, self.now)

    def kill(self, slot: int) -> None:
        for lane in range(LANES[slot]):
            del self.lanes[slot, lane]
        for link in [link for link in self.links if link[1] == slot]:
            self.cut(link)

    def fault(self) -> None:
        self.faults += 1
        drawn = self.random.random()
        slot = self.random.randrange(len(LANES))
        if drawn < 0.6 and self.links:
            self.cut(self.random.choice(list(self.links)))
        elif drawn < 0.8 and self.links:
            frozen = self.random.choice(list(self.links))
            self.frozen[frozen] = self.now + self.random.choice((0.4, 1.5))
        elif (slot, 0) in self.lanes:
            self.kill(slot)
        else:
            self.start(slot)

    def calm(self) -> None:
        for slot in range(len(LANES)):
            if (slot, 0) not in self.lanes:
                self.start(slot)

    # --- driving --------------------------------------------------------------------------------

    def connect(self) -> None:
        for rank, state in enumerate(self.states):
            for slot, lane in state.to_drop():
                self.cut((rank, slot, lane), "dropped")
            for slot, lane in state.wanted():
                again = self.now + self.random.choice((0, 0.05, 0.2))
                self.dials[rank, slot, lane] = again
        for link, at in list(self.dials.items()):
            if at > self.now:
                continue
            del self.dials[link]
            rank, slot, lane = link
            if (slot, lane) in self.lanes:
                self.links[link] = Session(self.lanes[slot, lane])
                self.states[rank].opened(slot, lane, self.now)
            else:
                self.states[rank].unreachable(slot, lane, "refused", self.now)

    def step(self) -> bool:
        self.connect()
        moved = False
        for link in self.random.sample(list(self.links), len(self.links)):
            session = self.links.get(link)
            if session is None or self.frozen.get(link, 0) > self.now:
                continue
            rank, slot, lane = link
            limit = self.random.choice((77, 5_000, 1 << 20))
            data = self.states[rank].outgoing(slot, lane, limit, self.now)
            session.send(data)
            back = session.take(self.random.choice((77, 5_000, 1 << 20)))
            self.states[rank].incoming(slot, lane, back, self.now)
            moved = moved or bool(data or back)
        return moved

    def pass_time(self, seconds: float, *, most: int = 1_000_000) -> None:
        for _ in range(round(seconds / 0.05)):
            for _ in range(most):
                if not self.step():
                    break
            self.now += 0.05
            for lane in self.lanes.values():
                lane.tick(self.now)
            for state in self.states:
                state.tick(self.now)

    def submit(self, number: int) -> list[tuple[Any, np.ndarray, np.ndarray | None]]:
        """Submit one round of each of three keys on every rank, each rank in its own order.

        Returns each operation with its target and the expected value; None if the ranks differ.
        """
        count = self.random.choice((1, 300, 5_000, 20_000))
        differs = self.random.choice(("a", "b", "", "", ""))
        calls: list[tuple[Any, np.ndarray, np.ndarray | None]] = []
        for rank, state in enumerate(self.states):
            for key in self.random.sample("abc", 3):
                wrong = key == differs
                values = np.full(count + rank * wrong, number + rank, np.float32)
                target = np.full_like(values, -1)
                operation = state.submit(1, 1, 1, False, key, 0, values.size, values, target)
                calls.append((operation, target, None if wrong else values * 3 - 3 * rank + 3))
        return calls

    def report(self) -> str:
        return "\n".join(
            f"{rank}: {state.error} {state.route} {state.suspected} {state.counters()}"
            for rank, state in enumerate(self.states)
        )


@pytest.mark.parametrize("seed", range(12))
def test_every_sum_comes_whatever_happens_to_connections_and_reducers(seed: int) -> None:
    storm = Storm(seed)
    storm.pass_time(2.0)
    assert all(state.joined for state in storm.states)
    calls = []
    for number in range(12):
        calls += storm.submit(number)
        for _ in range(storm.random.randrange(4)):
            storm.pass_time(0.05, most=storm.random.choice((1, 5, 1_000)))
            storm.fault()
        storm.pass_time(storm.random.choice((0.05, 0.5, 2.0)), most=20)
        assert all(state.error is None for state in storm.states), storm.report()
    assert storm.faults > 0
    storm.calm()
    for _ in range(60):
        storm.pass_time(0.5)
        if all(operation.done for operation, _, _ in calls):
            break
    for operation, target, expected in calls:
        assert operation.done, storm.report()
        if expected is None:
            assert operation.error[0] == ErrorCode.MISMATCH
            continue
        assert operation.error is None
        np.testing.assert_array_equal(target, expected)
    storm.pass_time(10.0)
    assert len({str(state.route) for state in storm.states}) == 1
    for state in storm.states:
        assert state.suspected == set()
        assert state.route["live"] == [1, 1, 1], storm.report()
        counters = state.counters()
        empty = ("unanswered", "queued", "copy_bytes", "live_rounds", "keys")
        assert {name: counters[name] for name in empty} == dict.fromkeys(empty, 0)
    for state in storm.states:
        state.leave(storm.now)
    storm.pass_time(1.0)
    assert all(state.left and state.error is None for state in storm.states)
