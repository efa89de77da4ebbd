"""Storms of faults over a simulated job, from a seed: the real core, the real engine state.

``python -m tests.support.storm --seeds 1000`` looks for a seed that breaks a law; the same seed
gives the same run.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reducer.core.runs.sums import FOLD_AT_ONCE
from reducer.core.surface.settings import MOST_SUMMED
from reducer.kernels import load
from reducer.wire.codes import DType
from reducer.wire.keys import key_id
from tests.support.block_rounds import DTYPES, BlocksRound
from tests.support.laws import Laws
from tests.support.simfaults import FaultyCluster
from tests.support.storm_loop import StormLoop

CHUNK = 1_024
TABLE = ((0, CHUNK),)
MOST_AHEAD = 8  # rounds of a key that a rank may be ahead of the slowest
FAULTS = 12  # in a spell
ROUNDS_OF_A_SPELL = 20
CALM = 4.0  # seconds between spells, else a rank could be silent for 5 s and be lost


def dtypes_of(seed: int, keys: list[str]) -> dict[str, DType]:
    """A third of the keys are sent in blocks. This changes no other choice of the seed."""
    rng = random.Random(f"dtypes {seed}")
    return {key: rng.choice((*DTYPES, *[DType.FLOAT32] * 2 * len(DTYPES))) for key in keys}


@dataclass
class Operation:
    handle: Any
    target: np.ndarray
    expected: bytes
    chunk_bytes: int  # of the target

    def holds(self, chunk: int) -> bool:
        piece = slice(chunk * self.chunk_bytes, (chunk + 1) * self.chunk_bytes)
        return self.handle.done or self.target.tobytes()[piece] == self.expected[piece]


@dataclass
class Storm(StormLoop):
    """One job with `rounds` rounds of each key; `run` raises AssertionError or StuckError."""

    seed: int
    rounds: int = 20
    rng: random.Random = field(init=False)
    cluster: FaultyCluster = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.faults = FAULTS
        self.spells = max(1, self.rounds // ROUNDS_OF_A_SPELL)
        self.calm_until = 0.0
        self.world = self.rng.randrange(2, 5)
        if self.seed % 8 == 0:
            self.world += FOLD_AT_ONCE  # some parts are folded before the last one has come
        lanes = tuple(self.rng.choice((1, 1, 2)) for _ in range(self.rng.randrange(1, 4)))
        self.keys = [f"key-{n}" for n in range(self.rng.randrange(1, 4))]
        self.dtypes = dtypes_of(self.seed, self.keys)
        self.cluster = FaultyCluster(
            self.world, lanes, table=TABLE, seed=self.seed, silence=1.0,
            credit=self.rng.choice((CHUNK * 4, CHUNK * 16, 4 << 20)), digest_every=self.seed % 4,
            most_summed=(MOST_SUMMED, 0)[self.seed // 8 % 2], weights=self._weights(len(lanes)),
        )  # fmt: skip
        self.repairs: list[tuple[float, Any]] = []
        self.cut: set[tuple[int, int]] = set()
        self.next_round = {(rank, key): 0 for rank in range(self.world) for key in self.keys}
        self.open: list[Operation] = []
        self.all: dict[tuple[int, int, int], Operation] = {}  # by rank, key and round
        self.laws = Laws(self.cluster, self.world, self.chunks, self.holds)

    def _weights(self, reducers: int) -> tuple[int, ...]:
        """Weights for a third of the seeds. They change no other choice of these seeds."""
        rng = random.Random(-self.seed)
        return tuple(rng.randint(1, 9) for _ in range(reducers)) if self.seed % 3 == 2 else ()

    # --- the job --------------------------------------------------------------------------------

    def values(self, key: str, number: int) -> np.ndarray:
        """The contributions of all ranks to a round; the same at every call."""
        rng = np.random.default_rng((self.seed, self.keys.index(key), number))
        count = int(rng.integers(1, 12 * CHUNK // 4))
        return rng.standard_normal((self.world, count), dtype=np.float32)

    def expected(self, key: str, number: int, values: np.ndarray) -> bytes:
        if self.dtypes[key] != DType.FLOAT32:
            round_ = self.blocks(key, number)
            return round_.expected(dict(enumerate(values)), self.world).tobytes()
        total = values[0].copy()
        for part in values[1:]:
            total += part
        return total.tobytes()

    def blocks(self, key: str, number: int) -> BlocksRound:
        return BlocksRound(
            self.dtypes[key], key, number, table=TABLE, stochastic=True, kernels=load()
        )

    def submit_some(self) -> None:
        """Let each rank submit some of its keys, in its own random order."""
        if self.cluster.now < self.calm_until:
            return
        for (rank, key), number in list(self.next_round.items()):
            slowest = min(self.next_round[other, key] for other in range(self.world))
            ahead = number - slowest >= MOST_AHEAD
            if number == self.rounds or ahead or self.rng.random() < 0.7:
                continue
            self.next_round[rank, key] = number + 1
            values = self.values(key, number)
            target = np.zeros_like(values[rank])
            source = values[rank].copy()
            dtype = self.dtypes[key]
            quantised = dtype != DType.FLOAT32
            handle = self.cluster.submit(
                rank, key, source, target, dtype=dtype, wide=quantised, stochastic=quantised
            )
            chunk_bytes = self.blocks(key, number).chunk_bytes if quantised else CHUNK
            expected = self.expected(key, number, values)
            operation = Operation(handle, target, expected, chunk_bytes)
            self.open.append(operation)
            self.all[rank, key_id(key), number] = operation

    def chunks(self, key: int, number: int) -> int:
        found = (self.all.get((rank, key, number)) for rank in range(self.world))
        return max((-(-len(o.expected) // o.chunk_bytes) for o in found if o), default=0)

    def holds(self, rank: int, key: int, number: int, chunk: int) -> bool:
        operation = self.all.get((rank, key, number))
        return operation is not None and operation.holds(chunk)

    def check(self) -> None:
        for operation in self.open:
            if operation.handle.done:
                assert operation.handle.error is None, (self.seed, operation.handle.error)
                assert operation.target.tobytes() == operation.expected, (
                    f"I1, I2, I3: seed {self.seed}: wrong sum of {operation.handle.key!r} "
                    f"round {operation.handle.round}"
                )
        self.open = [operation for operation in self.open if not operation.handle.done]
        self.laws.check()

    @property
    def submitted(self) -> bool:
        return all(number == self.rounds for number in self.next_round.values())

    # --- the faults -----------------------------------------------------------------------------

    def maybe_break(self) -> None:
        """Begin a random fault, which ends on its own after at most 3 s.

        A rank without any connection for 0.5 s is lost. So only links whose lanes have all welcomed
        the rank are cut, and cut links are not reset as well.
        """
        if not self.faults and not self.repairs and self.spells > 1:
            self.spells -= 1
            self.faults = FAULTS
            self.calm_until = self.cluster.now + CALM
            self.cut.clear()
        if not self.faults or self.cluster.now < self.calm_until or self.rng.random() >= 0.05:
            return
        self.faults -= 1
        cluster, rng = self.cluster, self.rng
        running = set(range(len(cluster.lanes_by_slot))) - cluster.frozen
        slots = [slot for slot in sorted(running) if cluster.is_up(slot)]
        if not slots:
            return
        slot = rng.choice(slots)
        end = cluster.now + rng.random() * 3
        match rng.choice(("reset", "reset", "kill", "freeze", "cut", "drain")):
            case "reset":
                whole = [link for link in cluster.sessions if link[:2] not in cluster.cut_off]
                if whole:
                    cluster.reset(rng.choice(sorted(whole)))
            case "kill":
                cluster.kill(slot)
                self.repairs.append((end, lambda: self.restart(slot)))
            case "freeze":
                cluster.frozen.add(slot)
                self.repairs.append((end, lambda: cluster.frozen.discard(slot)))
            case "cut":
                pair = (rng.randrange(self.world), slot)
                lanes = range(cluster.lanes_by_slot[slot])
                links = [cluster.sessions.get((*pair, lane)) for lane in lanes]
                whole = all(link is not None and link.welcomed for link in links)
                if whole and pair not in self.cut:  # two cuts could be too long in sum
                    self.cut.add(pair)
                    cluster.cut_off.add(pair)
                    self.repairs.append((end, lambda: cluster.cut_off.discard(pair)))
            case "drain":
                cluster.drain(slot)
                self.repairs.append((end, lambda: self.replace(slot)))

    def restart(self, slot: int) -> None:
        if not self.cluster.is_up(slot):
            self.cluster.start(slot)

    def replace(self, slot: int) -> None:
        if self.cluster.is_up(slot):
            self.cluster.kill(slot)
        self.cluster.start(slot)

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> None:
        self.rage()
        cluster = self.cluster
        cluster.heal()
        self.repairs.clear()
        cluster.settle(3.0)
        cluster.leave()
        cluster.settle(15.0)
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        for rank, state in enumerate(self.cluster.states):
            assert state.error is None, (self.seed, rank, state.error)
            assert state.counters()["copy_bytes"] == 0, (self.seed, rank, state.counters())
        assert self.cluster.held == 0, f"seed {self.seed}: lanes hold buffers"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    rounds = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        storm = Storm(seed, arguments.rounds)
        try:
            storm.run()
        except Exception:
            print(f"seed {seed}: broken, see below", flush=True)
            raise
        rounds += arguments.rounds * len(storm.keys)
        if seed % 50 == 0:
            print(f"seed {seed}: no law broken in {rounds:,} rounds", flush=True)
    print(f"{rounds:,} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
