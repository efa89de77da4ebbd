"""Storms in which workers die, stand still and are cut off, from a seed.

``python -m tests.support.worker_storm --seeds 1000`` looks for a seed that breaks a law; the same
seed gives the same run. The contributions are integers, so every sum is compared to the unit with
the sum over the members that its ledger names. Some keys are sent in blocks; their results are
compared with those of the kernels.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reducer.kernels import load
from reducer.wire.codes import DType
from reducer.wire.errors import ErrorCode
from tests.support.block_rounds import BlocksRound
from tests.support.laws import counts_what_it_holds
from tests.support.simelastic import ElasticCluster
from tests.support.storm import dtypes_of
from tests.support.storm_loop import StormLoop

CHUNK = 1_024
TABLE = ((0, CHUNK),)
MOST_AHEAD = 8  # rounds of a key that a rank may be ahead of the slowest
FAULTS = 14
STOP = 9.0  # seconds that a worker may stand still: longer than the silence of a worker


@dataclass
class Operation:
    rank: int
    key: str
    number: int
    handle: Any
    target: np.ndarray = field(repr=False)


@dataclass
class WorkerStorm(StormLoop):
    """One elastic job with `rounds` rounds of each key; `run` raises AssertionError."""

    seed: int
    rounds: int = 20
    rng: random.Random = field(init=False)
    cluster: ElasticCluster = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.faults = FAULTS
        self.world = rng.randrange(2, 7)
        self.least = rng.choice((1, 1, 2))  # workers that the storm leaves alone
        lanes = tuple(rng.choice((1, 1, 2)) for _ in range(rng.randrange(1, 4)))
        self.keys = [f"key-{n}" for n in range(rng.randrange(1, 4))]
        self.dtypes = dtypes_of(self.seed, self.keys)
        self.cluster = ElasticCluster(
            self.world, lanes, table=TABLE, seed=self.seed, silence=1.0,
            credit=rng.choice((CHUNK * 4, CHUNK * 16, 4 << 20)), digest_every=self.seed % 4,
            weights=tuple(rng.randint(1, 9) for _ in lanes) if self.seed % 3 == 2 else (),
        )  # fmt: skip
        self.cluster.asks = rng.choice((0.02, 0.2, 1.0))
        self.repairs: list[tuple[float, Any]] = []
        self.next_round = {(rank, key): 0 for rank in range(self.world) for key in self.keys}
        self.open: list[Operation] = []
        # By key and round: the first result of a rank that is in, and its sets.
        self.results: dict[tuple[str, int], dict[int, tuple[bytes, Any]]] = {}
        self.mixed = 0  # results that hold several sets
        self.shrunk = 0  # results without all ranks
        self.epochs = 0

    # --- the job --------------------------------------------------------------------------------

    def values(self, key: str, number: int) -> np.ndarray:
        """The contributions of all ranks to a round: integers, as float32."""
        rng = np.random.default_rng((self.seed, self.keys.index(key), number))
        count = int(rng.integers(1, 12 * CHUNK // 4))
        return rng.integers(-1_000, 1_000, (self.world, count)).astype(np.float32)

    def is_in(self, rank: int) -> bool:
        return rank not in self.cluster.dead and self.cluster.states[rank].error is None

    @property
    def survivors(self) -> list[int]:
        return [rank for rank in range(self.world) if self.is_in(rank)]

    def submit_some(self) -> None:
        survivors = [rank for rank in self.survivors if rank not in self.cluster.stopped]
        for (rank, key), number in list(self.next_round.items()):
            if rank not in survivors:
                continue
            slowest = min(self.next_round[other, key] for other in self.survivors)
            if number == self.rounds or number - slowest >= MOST_AHEAD or self.rng.random() < 0.7:
                continue
            self.next_round[rank, key] = number + 1
            values = self.values(key, number)
            target = np.zeros_like(values[rank])
            dtype = self.dtypes[key]
            handle = self.cluster.submit(
                rank, key, values[rank].copy(), target, dtype=dtype, wide=dtype != DType.FLOAT32
            )
            self.open.append(Operation(rank, key, number, handle, target))

    def check(self) -> None:
        for operation in self.open:
            if operation.handle.done and operation.rank not in self.cluster.dead:
                self.check_one(operation)
        self.open = [o for o in self.open if not o.handle.done and o.rank not in self.cluster.dead]
        for lane in self.cluster.lanes.values():
            for members in lane.core._roster.runs.values():
                counts_what_it_holds(members.run)
        for rank in self.survivors:
            state = self.cluster.states[rank]
            if state.joined and state.error is None:
                self.epochs = max(self.epochs, state.view[-1][0] if state.view else 0)

    def check_one(self, operation: Operation) -> None:
        """I1, I2, I12: the ledger equals the sum, to the unit."""
        rank, handle = operation.rank, operation.handle
        where = (self.seed, operation, handle.error)
        state = self.cluster.states[rank]
        if handle.error is not None:
            is_own = handle.error[2] == rank or handle.error[3] == "excluded"
            assert handle.error[0] == ErrorCode.PEER_LOST and is_own, where
            return
        values, at = self.values(operation.key, operation.number), 0
        for elements, epoch in handle.sets:
            members = self.cluster.members(epoch, state.view)
            expected = self.sum_of(operation, values, members)[at : at + elements]
            found = operation.target[at : at + elements]
            assert (expected == found).all(), f"I2: seed {self.seed}: {operation}: {handle.sets}"
            self.shrunk += len(members) < self.world
            at += elements
        assert at == values.shape[1], where
        self.mixed += len(handle.sets) > 1
        done = self.results.setdefault((operation.key, operation.number), {})
        done[rank] = (operation.target.tobytes(), handle.sets)

    def sum_of(self, operation: Operation, values: np.ndarray, members: list[int]) -> np.ndarray:
        dtype, key = self.dtypes[operation.key], operation.key
        if dtype == DType.FLOAT32:
            return np.asarray(values[members].sum(axis=0))
        round_ = BlocksRound(dtype, key, operation.number, table=TABLE, kernels=load())
        return round_.expected({rank: values[rank] for rank in members}, self.world)

    def check_agreement(self) -> None:
        """I1: every rank that is in to the end has the same bits and the same sets."""
        for (key, number), by_rank in self.results.items():
            found = {repr(by_rank[rank]) for rank in self.survivors}
            assert len(found) == 1, f"I1: seed {self.seed}: {key} round {number} differs"

    # --- the faults -----------------------------------------------------------------------------

    def maybe_break(self) -> None:
        if not self.faults or self.rng.random() >= 0.05:
            return
        cluster, rng = self.cluster, self.rng
        self.faults -= 1
        acting = self.acting
        end = cluster.now + rng.random() * 3
        what = rng.choice(("kill", "kill", "stop", "cut", "reset", "restart", "freeze", "registry"))
        if what in ("kill", "stop", "cut"):
            if len(acting) <= self.least:
                return
            rank = rng.choice(acting)
        if what == "kill":
            cluster.kill_worker(rank)
            others = [each for each in acting if each != rank]
            if len(others) > self.least and rng.random() < 0.5:
                soon = cluster.now + rng.random() * 0.3
                self.repairs.append((soon, lambda: self.kill_if_in(rng.choice(others))))
        elif what == "stop":
            cluster.stopped.add(rank)
            later = cluster.now + rng.random() * STOP
            self.repairs.append((later, lambda: cluster.stopped.discard(rank)))
        elif what == "cut":
            pairs = {(rank, slot) for slot in range(len(cluster.lanes_by_slot))}
            cluster.cut_off |= pairs
            self.repairs.append((end, lambda: cluster.cut_off.difference_update(pairs)))
        elif what == "registry":
            cluster.registry.is_up = False
            self.repairs.append((end, lambda: setattr(cluster.registry, "is_up", True)))
        else:
            self.break_reducer(what, end)

    @property
    def acting(self) -> list[int]:
        """The ranks that nothing hinders."""
        stopped = self.cluster.stopped
        return [r for r in self.survivors if r not in stopped and not self.is_cut(r)]

    def kill_if_in(self, rank: int) -> None:
        if rank in self.acting and len(self.acting) > self.least:
            self.cluster.kill_worker(rank)

    def is_cut(self, rank: int) -> bool:
        return any(pair[0] == rank for pair in self.cluster.cut_off)

    def break_reducer(self, what: str, end: float) -> None:
        cluster, rng = self.cluster, self.rng
        running = set(range(len(cluster.lanes_by_slot))) - cluster.frozen
        slots = [slot for slot in sorted(running) if cluster.is_up(slot)]
        if what == "reset" and cluster.sessions:
            cluster.reset(rng.choice(sorted(cluster.sessions)))
        elif slots and what == "restart":
            slot = rng.choice(slots)
            cluster.kill(slot)
            self.repairs.append((end, lambda: cluster.start(slot)))
        elif slots and what == "freeze":
            slot = rng.choice(slots)
            cluster.frozen.add(slot)
            self.repairs.append((end, lambda: cluster.frozen.discard(slot)))

    # --- the run --------------------------------------------------------------------------------

    @property
    def submitted(self) -> bool:
        return all(
            self.next_round[r, key] == self.rounds for r in self.survivors for key in self.keys
        )

    def run(self) -> None:
        self.rage()
        cluster = self.cluster
        assert self.survivors, f"seed {self.seed}: nobody is left"
        self.check_agreement()
        self.repairs.sort(key=lambda each: each[0])
        for _, job in self.repairs:
            job()
        self.repairs.clear()
        cluster.heal()
        cluster.settle(15.0)
        self.check()
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        cluster = self.cluster
        for rank in self.survivors:
            counters = cluster.states[rank].counters()
            assert counters["copy_bytes"] == 0, f"I6: seed {self.seed} rank {rank}: {counters}"
        assert cluster.held == 0, f"I6: seed {self.seed}: lanes hold buffers"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    rounds = shrunk = mixed = views = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        storm = WorkerStorm(seed, arguments.rounds)
        try:
            storm.run()
        except Exception:
            print(f"seed {seed}: broken, see below", flush=True)
            raise
        rounds += arguments.rounds * len(storm.keys)
        shrunk, mixed, views = shrunk + storm.shrunk, mixed + storm.mixed, views + storm.epochs
        if seed % 50 == 0:
            print(f"seed {seed}: no law broken in {rounds:,} rounds", flush=True)
    print(f"{rounds:,} rounds, {views:,} views, {shrunk:,} sums without a rank, {mixed:,} mixed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
