"""The worker's side of steps: alone, and many workers against the owner's real rule."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from reducer.core.tables.owner import StepOwner, StepSet
from reducer_client.tables.steps import Choice, Decided, Order, Say, SendGradient, Steps

OWNER = 1


def steps(worker: int = 0, *, needs_all: bool = False, version: int = 0) -> Steps:
    return Steps(worker, range(3), OWNER, needs_all, version)


def choice(step: int, generation: int, *members: int) -> Choice:
    return Choice(step, generation, members, (1,) * len(members), -1.0)


def calls(orders: list[Order]) -> list[tuple[int, str]]:
    return [(each.partition, each.call) for each in orders if isinstance(each, Say)]


def test_a_gradient_is_sent_when_its_worker_is_in_the_set() -> None:
    one = steps()
    assert one.enter(weight=2) == [Say(OWNER, "enter", 1, weight=2)]
    orders = one.take_set(choice(1, 0, 0, 2))
    assert calls(orders) == [(0, "set"), (2, "set")]
    assert orders[-1] == SendGradient(1) and one.was_sent
    assert one.take_set(choice(1, 0, 0, 2)) == []


def test_where_all_workers_are_needed_a_gradient_is_sent_at_once() -> None:
    one = steps(needs_all=True)
    assert one.enter() == [Say(OWNER, "enter", 1), SendGradient(1)]
    assert calls(one.take_set(choice(1, 0, 0, 1))) == [(0, "set"), (2, "set")]


def test_a_worker_that_is_no_member_tells_nobody_the_set() -> None:
    one = steps()
    one.enter()
    assert one.take_set(choice(1, 0, 1, 2)) == []


def test_the_owner_hears_once_that_all_lanes_have_folded() -> None:
    one = steps()
    assert one.take_folded(1, 0, 0) == [] and one.take_folded(1, 0, 1) == []
    assert one.take_folded(1, 0, 2) == [Say(OWNER, "folded", 1)]
    assert one.take_folded(1, 0, 2) == []


def test_another_generation_counts_its_lanes_anew() -> None:
    one = steps()
    one.take_folded(1, 0, 0)
    assert one.take_folded(1, 1, 1) == [] and one.take_folded(1, 1, 2) == []
    assert one.take_folded(1, 0, 1) == []
    assert one.take_folded(1, 1, 0) == [Say(OWNER, "folded", 1, 1)]


def test_a_commit_is_passed_on_once_and_decides() -> None:
    one = steps()
    one.enter()
    one.take_set(choice(1, 0, 0, 2))
    orders = one.take_commit(1, 0)
    assert calls(orders) == [(0, "commit"), (2, "commit")]
    assert orders[-1] == Decided(1, is_in=True) and not one.is_open
    assert one.take_commit(1, 0) == []
    assert one.version == 1


def test_late_decides_nothing_before_the_commit() -> None:
    one = steps()
    one.enter()
    one.take_set(choice(1, 0, 1, 2))
    assert one.take_late(1) == [] and one.is_open
    assert one.take_set(choice(1, 1, 0, 2))[-1] == SendGradient(1)
    assert one.take_commit(1, 1)[-1] == Decided(1, is_in=True)


def test_a_step_that_was_committed_without_the_gradient_is_over() -> None:
    one = steps()
    one.enter()
    assert one.take_commit(1, 0, (1, 2))[-1] == Decided(1, is_in=False)
    assert one.enter()[0] == Say(OWNER, "enter", 2)


def test_a_commit_of_a_later_step_decides_what_was_not_sent() -> None:
    one = steps()
    one.enter()
    assert one.take_commit(4, 0, (0, 2))[-1] == Decided(1, is_in=False)


def test_a_gradient_from_an_old_version_is_late_at_once() -> None:
    one = steps()
    one.take_commit(4, 0, (1, 2))
    assert one.enter() == [Decided(1, is_in=False)]
    assert one.enter() == [Decided(2, is_in=False)]
    one.saw(4)
    assert one.enter() == [Decided(3, is_in=False)]
    one.pulled(4)
    assert one.enter()[0] == Say(OWNER, "enter", 5)


def test_a_missed_commit_is_decided_by_the_lanes_answer() -> None:
    for is_in in (True, False):
        one = steps(needs_all=True)
        one.enter()
        assert one.take_commit(2, 0, (0, 1))[2:] == [] and one.is_open
        assert one.take_outcome(1, is_in) == [Decided(1, is_in)]
        assert one.take_outcome(1, is_in) == []


def test_a_pull_shows_the_end_of_a_step() -> None:
    one = steps()
    one.enter()
    assert one.pulled(0) == []
    assert one.pulled(6) == [Decided(1, is_in=False)]
    assert one.enter()[0] == Say(OWNER, "enter", 7)


def test_a_new_connection_hears_what_it_may_have_missed() -> None:
    one = steps()
    assert one.reopened(0) == [] and one.reopened(OWNER) == []
    one.enter(weight=3)
    assert one.reopened(OWNER) == [Say(OWNER, "enter", 1, weight=3)]
    one.take_set(choice(1, 0, 0, 2))
    assert calls(one.reopened(0)) == [(0, "set")]
    for lane in range(3):
        one.take_folded(1, 0, lane)
    assert calls(one.reopened(OWNER)) == [(OWNER, "enter"), (OWNER, "folded")]
    one.take_commit(1, 0)
    assert calls(one.reopened(2)) == [(2, "commit")] and one.reopened(OWNER) == []
    one.enter()
    one.take_set(choice(2, 0, 0, 1))
    assert calls(one.reopened(2)) == [(2, "commit"), (2, "set")]


# --- many workers --------------------------------------------------------------------------------


@dataclass
class Lane:
    """A lane with one shard; lane OWNER has the real owner."""

    number: int
    owner: StepOwner | None = None
    committed: int = 0
    chosen: StepSet | None = None
    parts: set[int] = field(default_factory=set)
    last_in: dict[int, int] = field(default_factory=dict)


@dataclass
class Worker:
    """``unanswered``: (lane, step) of gradients whose outcome has not come."""

    steps: Steps
    outcomes: dict[int, bool] = field(default_factory=dict)
    unanswered: set[tuple[int, int]] = field(default_factory=set)


class Cluster:
    """Workers and lanes, joined by connections that keep the order and may be cut."""

    def __init__(
        self, rng: random.Random, workers: int, quorum: int, lanes: int, until: int
    ) -> None:
        self.rng = rng
        self.until = until
        self.sets: dict[int, tuple[int, ...]] = {}
        self.lanes = [Lane(each) for each in range(lanes)]
        self.owner = StepOwner(quorum, workers, 4)
        self.lanes[OWNER].owner = self.owner
        self.workers = [
            Worker(Steps(each, range(lanes), OWNER, quorum == workers)) for each in range(workers)
        ]
        self.up: dict[tuple[int, int], deque[Order]] = {}
        self.down: dict[tuple[int, int], deque[tuple[object, ...]]] = {}
        for worker in range(workers):
            self.owner.join(worker)
            for lane in range(lanes):
                self.up[worker, lane] = deque()
                self.down[worker, lane] = deque()

    def run(self, cuts: int) -> None:
        while True:
            for number, worker in enumerate(self.workers):
                self.go_on(number, worker)
            ready = [key for key, queue in self.up.items() if queue]
            ready += [(-1 - worker, lane) for (worker, lane), queue in self.down.items() if queue]
            if cuts and self.rng.random() < 0.05:
                cuts -= 1
                self.cut(self.rng.choice(list(self.up)))
            elif ready:
                self.deliver(*self.rng.choice(ready))
            else:
                return

    def go_on(self, number: int, worker: Worker) -> None:
        """Enter the next step when all that came before is over, as a program does."""
        steps = worker.steps
        if steps.is_open or worker.unanswered or steps.last >= self.until:
            return
        if steps.last:  # pull
            if min(lane.committed for lane in self.lanes) < steps.last:
                return
            version = min(lane.committed for lane in self.lanes)
            self.obey(number, steps.pulled(version))
            if version >= self.until:
                return
        self.obey(number, steps.enter())

    def obey(self, number: int, orders: list[Order]) -> None:
        worker = self.workers[number]
        for order in orders:
            if isinstance(order, Say):
                self.up[number, order.partition].append(order)
            elif isinstance(order, SendGradient):
                for lane in range(len(self.lanes)):
                    worker.unanswered.add((lane, order.step))
                    self.up[number, lane].append(order)
            else:
                assert order.step not in worker.outcomes
                worker.outcomes[order.step] = order.is_in

    def cut(self, key: tuple[int, int]) -> None:
        number, lane = key
        self.up[key].clear()
        self.down[key].clear()
        worker = self.workers[number]
        at, owner = self.lanes[lane], self.lanes[lane].owner
        if owner is not None and owner.last is not None:
            self.tell(number, lane, "commit", owner.last)
        if owner is not None and owner.set is not None:
            self.tell(number, lane, "set", owner.set)
        self.tell_folded(at, [number])
        self.obey(number, worker.steps.reopened(lane))
        for where, step in sorted(worker.unanswered):
            if where == lane:
                self.up[key].append(SendGradient(step))

    def tell(self, number: int, lane: int, call: str, chosen: StepSet) -> None:
        self.down[number, lane].append(
            (call, chosen.step, chosen.generation, chosen.members, chosen.weights)
        )

    def deliver(self, number: int, lane: int) -> None:
        if number < 0:
            self.hear(-1 - number, lane, *self.down[-1 - number, lane].popleft())
            return
        order = self.up[number, lane].popleft()
        at = self.lanes[lane]
        if isinstance(order, SendGradient):
            self.take_gradient(at, number, order.step)
        elif isinstance(order, Say):
            self.take_call(at, number, order)

    def hear(self, number: int, lane: int, call: object, *rest: object) -> None:
        worker, s = self.workers[number], self.workers[number].steps
        step, generation, members, weights = rest  # type: ignore[misc]
        assert isinstance(step, int) and isinstance(generation, int)
        if call == "set":
            self.obey(number, s.take_set(Choice(step, generation, members, weights, -1.0)))  # type: ignore[arg-type]
        elif call == "commit":
            self.obey(number, s.take_commit(step, generation, members))  # type: ignore[arg-type]
        elif call == "late":
            self.obey(number, s.take_late(step))
        elif call == "folded":
            self.obey(number, s.take_folded(step, generation, lane))
        else:
            worker.unanswered.discard((lane, step))
            self.obey(number, s.take_outcome(step, bool(generation)))

    def take_gradient(self, at: Lane, number: int, step: int) -> None:
        assert step <= at.committed + 1
        if step <= at.committed:
            self.answer(at, number, step)
        else:
            at.parts.add(number)
            self.maybe_fold(at)

    def answer(self, at: Lane, number: int, step: int) -> None:
        was_in = int(at.last_in.get(number) == step)
        self.down[number, at.number].append(("receipt", step, was_in, (), ()))

    def take_call(self, at: Lane, number: int, order: Say) -> None:
        if order.call == "enter":
            assert at.owner is not None
            decided = at.owner.enter(number, order.step, order.weight)
            if decided is None:
                self.down[number, at.number].append(("late", order.step, 0, (), ()))
            elif decided:
                assert at.owner.set is not None
                for worker in range(len(self.workers)):
                    self.tell(worker, at.number, "set", at.owner.set)
                self.choose(at, at.owner.set)
        elif order.call == "set":
            chosen = StepSet(order.step, order.generation, order.members, order.weights)
            known = (0, 0) if at.chosen is None else (at.chosen.step, at.chosen.generation)
            if order.step == at.committed + 1 and (order.step, order.generation) > known:
                self.choose(at, chosen)
        elif order.call == "folded":
            assert at.owner is not None
            if at.owner.commit(order.step, order.generation):
                assert at.owner.last is not None
                self.sets[order.step] = at.owner.last.members
                for worker in range(len(self.workers)):
                    self.tell(worker, at.number, "commit", at.owner.last)
                self.commit(at, order.step)
        elif order.step > at.committed:
            self.commit(at, order.step)

    def choose(self, at: Lane, chosen: StepSet) -> None:
        at.chosen = chosen
        self.maybe_fold(at)

    def maybe_fold(self, at: Lane) -> None:
        self.tell_folded(at, list(range(len(self.workers))))

    def tell_folded(self, at: Lane, to: list[int]) -> None:
        chosen = at.chosen
        is_open = chosen is not None and chosen.step == at.committed + 1
        if chosen is not None and is_open and at.parts >= set(chosen.members):
            for worker in to:
                row = ("folded", chosen.step, chosen.generation, (), ())
                self.down[worker, at.number].append(row)

    def commit(self, at: Lane, step: int) -> None:
        assert at.chosen is not None and at.chosen.step == step == at.committed + 1
        assert at.parts >= set(at.chosen.members)
        at.committed = step
        at.last_in.update(dict.fromkeys(at.chosen.members, step))
        parts, at.parts = at.parts, set()
        for number in parts:
            self.answer(at, number, step)


@pytest.mark.parametrize("cuts", [0, 12])
@pytest.mark.parametrize(("workers", "quorum"), [(1, 1), (3, 3), (4, 3), (4, 1)])
def test_each_worker_knows_whether_its_gradient_is_in(workers: int, quorum: int, cuts: int) -> None:
    for seed in range(60):
        cluster = Cluster(random.Random(seed), workers, quorum, lanes=3, until=6)
        cluster.run(cuts)
        assert [lane.committed for lane in cluster.lanes] == [6, 6, 6], seed
        assert sorted(cluster.sets) == [1, 2, 3, 4, 5, 6]
        for number, worker in enumerate(cluster.workers):
            assert not worker.steps.is_open, seed
            for step, is_in in worker.outcomes.items():
                assert is_in == (number in cluster.sets[step]), (seed, number, step)
            for step, members in cluster.sets.items():
                assert number not in members or worker.outcomes[step], (seed, number, step)
