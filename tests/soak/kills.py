"""B1, B12: reducers are killed every 20 turns or so and start again: nothing is lost or kept."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from tests.soak import Figures, Say
from tests.soak.training import SETTLE_SECONDS, Training
from tests.support.cluster import Daemon, Usage, peak_resident, usage
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

REDUCERS = 3
KILL_EVERY = (10, 28)  # turns
BUDGET = 256 << 20
MEBIBYTE = 1 << 20
MOST_GROWTH = 16 * MEBIBYTE  # resident, of a rank in the second half
MOST_SECONDS = 10.0  # of a turn in which a reducer died: twice the 5 s after which silence counts


class Victims:
    """Reducers of which some are starting; remembers the most memory of all their lives."""

    def __init__(self, reducers: Reducers, starter: ThreadPoolExecutor) -> None:
        self._reducers = reducers
        self._starter = starter
        self._starting: dict[int, Future[None]] = {}
        self._fresh = {index: _lane(reducers.daemon(index)) for index in range(REDUCERS)}
        self.kills = 0
        self.most = 0  # bytes above those of the fresh process

    def running(self) -> list[int]:
        for index in [i for i, start in self._starting.items() if start.done()]:
            self._starting.pop(index).result()
            self._fresh[index] = _lane(self._reducers.daemon(index))
        return [index for index in range(REDUCERS) if index not in self._starting]

    def kill(self, index: int) -> None:
        self._weigh(index)
        self._reducers.kill(index)
        self.kills += 1
        self._starting[index] = self._starter.submit(self._reducers.start, index)

    def settle(self) -> None:
        """The job has ended: what it took is given back, but for pooled memory."""
        for start in self._starting.values():
            start.result()
        for index in self.running():
            self._weigh(index)
            fresh = self._fresh[index]
            wait_until(partial(self._is_back, index, fresh), SETTLE_SECONDS)

    def _is_back(self, index: int, fresh: Usage) -> bool:
        now = _lane(self._reducers.daemon(index))
        return now.descriptors <= fresh.descriptors and now.threads <= fresh.threads

    def _weigh(self, index: int) -> None:
        (pid,) = self._reducers.daemon(index).lane_pids()
        self.most = max(self.most, peak_resident(pid) - self._fresh[index].resident)
        assert self.most < 1.1 * BUDGET, f"a lane took {self.most:,} bytes more than at its start"


def _lane(daemon: Daemon) -> Usage:
    (pid,) = daemon.lane_pids()
    return usage(pid)


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` turns of 4 ranks, each of three rounds."""
    rng = random.Random(seed)
    with (
        ThreadPoolExecutor(REDUCERS) as starter,
        Reducers(REDUCERS, "--memory", str(BUDGET), "--log-level", "error") as reducers,
        Training(reducers.addresses, "kills", seed=seed) as training,
    ):
        training.turn()
        victims = Victims(reducers, starter)
        due = rng.randint(*KILL_EVERY)
        for turn in range(1, count):
            training.turn()
            if turn % 500 == 0:
                say(f"{turn:,} of {count:,} turns, {victims.kills} kills")
            running = victims.running()
            if turn >= due and running:
                victims.kill(rng.choice(running))
                due = turn + rng.randint(*KILL_EVERY)
        accounts = training.finish()
        victims.settle()
    growth = max(account.resident[1] - account.resident[0] for account in accounts)
    slowest = max(account.slowest for account in accounts)
    assert growth < MOST_GROWTH, f"a rank grew by {growth:,} bytes in the second half"
    assert slowest < MOST_SECONDS, f"a turn took {slowest:.1f} s"
    assert victims.kills >= (count - 1) // KILL_EVERY[1] // 2, "too few kills to show anything"
    return {
        "turns": f"{accounts[0].turns:,} of 3 rounds on 4 ranks",
        "kills": f"{victims.kills:,}",
        "wrong sums, lost steps, hangs": "0",
        "slowest turn": f"{slowest:.2f} s",
        "lanes at most": f"{victims.most / MEBIBYTE:.1f} MiB of {BUDGET / MEBIBYTE:.0f}",
        "ranks grew by": f"{growth / MEBIBYTE:.1f} MiB in the second half",
    }
