"""If a chunk has more parts than are summed at once, they are summed in turns of the job."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from reducer.core.runs.run import Run
from reducer.core.runs.sums import FOLD_AT_ONCE
from reducer.core.surface import events
from reducer.wire import messages
from reducer.wire.codes import DType, ErrorCode
from reducer.wire.keys import key_id, position
from tests.support.frames import control, heartbeat
from tests.support.laws import counts_what_it_holds
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

WORLD = 11
ALL_AT_ONCE = 1 << 20
AWAY = messages.Route(1, (0, 1), (1, 0), (1, 1))  # declares slot 1, where the run is, dead


class Late:
    """A run whose rank 0 is the last to send: all parts are parked until then."""

    def __init__(
        self,
        dtype: DType = DType.FLOAT32,
        most_summed: int = 0,
        missing: int = WORLD,
        since: int = 0,
        **hello: int,
    ) -> None:
        """`since`: the route that has moved the stream here, 0 for none.

        The stream's earlier owner has completed the round, and all ranks but 0 report that.
        """
        self.lane = SimLane(most_summed=most_summed)
        self.lane.inject = self._count
        self.workers = join_all(self.lane, WORLD, **hello)
        self.since = since
        if since:
            route = messages.Route(since, (since,), (1,), (1,))
            self.workers[0].session.send(control(route))
            for worker in self.workers[1:]:
                self.pass_on(worker)
        (members,) = self.lane.core._roster.runs.values()
        self.run: Run = members.run
        self.kernels: list[int] = []  # number of parts of each kernel call
        self.spec = Spec(dtype=dtype)
        rng = np.random.default_rng(0)
        exact = rng.normal(size=(WORLD, 8)).astype(np.float32)
        self.values: np.ndarray = exact
        if dtype == DType.BFLOAT16:  # the upper half of a float32
            self.values = (exact.view(np.uint32) >> 16).astype(np.uint16)
        elif dtype == DType.INT8:
            self.values = exact.astype(np.int8)
        for worker in reversed(self.workers):
            if worker.rank != missing:
                self.contribute(worker)

    def _count(self, output: events.Output | int) -> None:
        if isinstance(output, events.Fold | events.Finish):
            self.kernels.append(len(output.parts))

    def contribute(self, worker: Scripted) -> None:
        data = self.values[worker.rank].tobytes()
        worker.contribute(self.spec, data=data, route=self.since)
        counts_what_it_holds(self.run)

    def pass_on(self, worker: Scripted) -> None:
        """The rank reports that it has the result of the round."""
        entry = (key_id(Spec().key), position(1, 0))
        worker.session.send(heartbeat(entry, route=self.since))

    def catch_up(self) -> None:
        self.lane.catch_up(self.workers[0].session.number)
        counts_what_it_holds(self.run)

    def end(self) -> None:
        for before in range(len(self.kernels), WORLD):
            if self.run.is_behind:
                self.catch_up()
                assert len(self.kernels) == before + 1

    def results(self) -> set[bytes]:
        return {result for worker in self.workers for result in worker.results()}


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(DType.FLOAT32, FOLD_AT_ONCE), (DType.BFLOAT16, FOLD_AT_ONCE), (DType.INT8, 8)],
)
def test_a_late_rank_0_costs_a_turn_for_few_parts(dtype: DType, most: int) -> None:
    """A turn sums at least the parts that are as large as an accumulator, or it would never end."""
    late = Late(dtype)
    assert not late.results()
    late.end()
    assert max(late.kernels) == most and sum(late.kernels) >= WORLD
    at_once = Late(dtype, ALL_AT_ONCE)
    assert not at_once.run.is_behind
    expected = at_once.results()
    assert len(expected) == 1 and late.results() == expected
    if dtype == DType.FLOAT32:
        assert expected == {functools.reduce(np.add, late.values).tobytes()}
    assert late.run.results.last_ranks == [1] + [0] * (WORLD - 1)


def test_contributions_that_need_no_kernel_take_the_next_parts() -> None:
    late = Late()
    for number in range(1, WORLD):
        late.workers[1].contribute(Spec(number=number), data=bytes(32))
    assert len(late.results()) == 1
    assert max(late.kernels) == FOLD_AT_ONCE


def test_ticks_find_somebody_who_is_here() -> None:
    late = Late()
    for worker in late.workers[:-1]:
        worker.session.disconnect()
    late.lane._behind.clear()
    for _ in range(WORLD):
        late.lane.tick()
    assert len(late.workers[-1].results()) == 1


def test_a_rank_that_is_missing_ends_the_turns() -> None:
    late = Late(missing=9)
    for _ in range(2):
        late.catch_up()
    assert late.kernels == [FOLD_AT_ONCE, FOLD_AT_ONCE] and not late.run.is_behind
    late.contribute(late.workers[9])
    assert late.results() == {functools.reduce(np.add, late.values).tobytes()}


def void(late: Late) -> None:
    late.workers[3].abandon(late.spec)


def fail(late: Late) -> None:
    error = messages.Error(int(ErrorCode.PEER_LOST), "x", rank=2)
    late.workers[3].session.send(control(error))


@pytest.mark.parametrize("stop", [void, fail])
@pytest.mark.parametrize("parts", [0, 1])
def test_nothing_is_sent_or_kept_of_a_round_that_is_over(
    stop: Callable[[Late], None], parts: int
) -> None:
    late = Late()
    for _ in range(parts):
        late.catch_up()
    stop(late)
    assert not late.lane.held
    late.lane.tick()
    late.lane.tick()
    assert not late.run.is_behind and not late.results()
    assert len(late.kernels) == 1 + parts


def test_a_stream_that_moves_away_takes_its_sums_along() -> None:
    late = Late(slot=1, reducers=2)
    assert late.run.is_behind
    late.workers[0].session.send(control(AWAY))
    late.lane.tick()
    assert not late.run.is_behind and not late.results()


@pytest.mark.parametrize("parts", [0, 1])
def test_a_chunk_that_every_rank_has_passed_is_not_summed(parts: int) -> None:
    """Regression: its result was complete below the stable position, and was in no account."""
    late = Late(since=1)
    for _ in range(parts):
        late.catch_up()
    assert late.run.is_behind
    late.pass_on(late.workers[0])
    assert not late.run.is_behind and not late.results()
    assert not late.lane.held and len(late.kernels) == 1 + parts
