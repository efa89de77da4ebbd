"""A Hypothesis state machine drives the lanes with real engine states on the other side.

Ranks submit rounds of several keys in any interleaving, sometimes mismatched; bytes move in any
order; time passes. At the end every rank catches up, and each round has either the oracle's bits
or the same refusal on every rank.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from reducer.core.limits.budget import SHARES_BESIDE_RANKS, share_of
from reducer.wire.codes import DType, ErrorCode, ReduceOp
from tests.support import oracle
from tests.support.counts import draws
from tests.support.laws import counts_what_it_holds
from tests.support.simcluster import SimCluster

KEYS = ("a", "b", "layer1.weight")
Description = tuple[DType, ReduceOp, int]
DTYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.UINT64)
DESCRIPTIONS = st.builds(
    lambda case, count: (*case, count),
    st.sampled_from([(dtype, op) for dtype in DTYPES for op in oracle.ops_of(dtype)]),
    st.sampled_from((0, 1, 100, 1_500, 5_000)),
)


class JobMachine(RuleBasedStateMachine):
    """`rounds[key][n]` is how each rank has described round n: (description, input, target, op)."""

    @initialize(
        world=st.sampled_from((1, 2, 3, 4, 6)),
        lanes=st.sampled_from([(1,), (2,), (1, 1), (2, 1)]),
        seed=st.integers(0, 1 << 20),
        credit=st.sampled_from((4_096, 16_384)),
    )
    def start(self, world: int, lanes: tuple[int, ...], seed: int, credit: int) -> None:
        self.cluster = SimCluster(
            world,
            lanes,
            ((0, 4_096),),
            seed,
            credit=credit,
            budget=(world + SHARES_BESIDE_RANKS) * share_of(3 * 16_384),
        )
        self.cluster.join()
        self.random = np.random.default_rng(seed)
        self.rounds: dict[str, list[dict[int, Any]]] = defaultdict(list)
        self.lost: int | None = None

    def _submit(self, rank: int, key: str, description: Description) -> None:
        """Submit the next round of `key` on `rank`, with this description."""
        rounds = self.rounds[key]
        number = sum(rank in round_ for round_ in rounds)
        if number == len(rounds):
            rounds.append({})
        dtype, op, count = description
        source = oracle.sample(self.random, dtype, count)
        target = np.empty_like(source)
        operation = self.cluster.submit(rank, key, source, target, op=int(op), dtype=int(dtype))
        assert (operation.key, operation.round) == (key, number)
        rounds[number][rank] = (description, source, target, operation)

    def _known(self, rank: int, key: str) -> Description | None:
        rounds = self.rounds[key]
        number = sum(rank in round_ for round_ in rounds)
        if number == len(rounds):
            return None
        description: Description = next(iter(rounds[number].values()))[0]
        return description

    @precondition(lambda self: self.lost is None)
    @rule(
        rank=st.integers(0, 3),
        key=st.sampled_from(KEYS),
        description=DESCRIPTIONS,
        odd=st.integers(0, 19).map(lambda n: n == 0),
    )
    def submit(self, rank: int, key: str, description: Description, odd: bool) -> None:
        rank %= len(self.cluster.states)
        known = self._known(rank, key)
        self._submit(rank, key, description if known is None or odd else known)

    @rule(steps=st.integers(1, 30), cut=st.sampled_from((0, 1, 77, 1 << 20)))
    def move_bytes(self, steps: int, cut: int) -> None:
        self.cluster.cut = cut
        for _ in range(steps):
            self.cluster.step()

    @rule(seconds=st.sampled_from((0.05, 0.3, 1.5)))
    def pass_time(self, seconds: float) -> None:
        self.cluster.cut = 0
        self.cluster.settle(seconds)

    @precondition(lambda self: self.lost is None and len(self.cluster.states) > 1)
    @rule(rank=st.integers(1, 3), chance=st.integers(0, 9))
    def lose(self, rank: int, chance: int) -> None:
        """Sometimes one rank dies: its links end in the middle of their bytes."""
        if chance:
            return
        self.lost = rank % len(self.cluster.states)
        for rank_, reducer, lane in list(self.cluster.sessions):
            if rank_ == self.lost:
                self.cluster.sessions.pop((rank_, reducer, lane)).disconnect("connection reset")

    @invariant()
    def memory_is_bounded(self) -> None:
        for lane in self.cluster.lanes.values():
            # One buffer of slack, for an accumulator that replaces its parts.
            assert lane.peak <= lane.settings.budget * 1.1 + 8 * 4_096
            for members in lane.core._roster.runs.values():
                counts_what_it_holds(members.run)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        self.cluster.cut = 0
        if self.lost is None:
            self._complete_everything()
        else:
            self._everyone_is_told()
        assert self.cluster.held == 0

    def _complete_everything(self) -> None:
        operations = []
        for key, rounds in self.rounds.items():
            for rank in range(len(self.cluster.states)):
                while (known := self._known(rank, key)) is not None:
                    self._submit(rank, key, known)
            operations += [entry[3] for round_ in rounds for entry in round_.values()]
        self.cluster.finish(operations)
        for rounds in self.rounds.values():
            for round_ in rounds:
                self._check(round_)
        self.cluster.settle(14.0)
        for state in self.cluster.states:
            assert state.error is None
            assert state.counters()["copy_bytes"] == 0
        for lane in self.cluster.lanes.values():
            job = lane.snapshot()["jobs"]["job"]
            assert (job["open_rounds"], job["keys"]) == (0, 0)

    def _check(self, round_: dict[int, Any]) -> None:
        entries = [round_[rank] for rank in sorted(round_)]
        errors = {operation.error for *_, operation in entries}
        if len({description for description, *_ in entries}) > 1:
            (error,) = errors
            assert error is not None
            assert error[0] == ErrorCode.MISMATCH
            return
        assert errors == {None}
        dtype, op, _ = entries[0][0]
        expected = oracle.reduce(op, dtype, [source for _, source, _, _ in entries]).tobytes()
        assert all(target.tobytes() == expected for _, _, target, _ in entries)

    def _everyone_is_told(self) -> None:
        self.cluster.settle(1.5)
        for rank, state in enumerate(self.cluster.states):
            if rank != self.lost:
                assert state.error is not None
                assert state.error[0] == ErrorCode.PEER_LOST
                assert state.error[2] == self.lost
        for rounds in self.rounds.values():
            for round_ in rounds:
                for rank, entry in round_.items():
                    assert rank == self.lost or entry[3].done


JobMachine.TestCase.settings = settings(
    max_examples=draws(60, 150),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestJobMachine = JobMachine.TestCase
