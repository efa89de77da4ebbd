"""A plan: what the model says of one cluster for each number of reducers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from reducer_tools.planner import cost, model

Winner = Literal["reducers", "ring", "neither"]
# Numbers of reducers that a plan has before it begins to leave some out.
_MOST_ROWS = 64
# Times that differ by rounding alone are equal.
_EQUAL = 1e-9


@dataclass(frozen=True)
class Step:
    """What a step is beside its all-reduce. ``compute_seconds`` is None where it is not known;
    ``overlap`` is the part of it that can hide communication."""

    compute_seconds: float | None = None
    overlap: float = 0.0

    def __post_init__(self) -> None:
        cost.check_seconds("compute", self.compute_seconds)
        cost.check_overlap(self.overlap)

    def seconds(self, allreduce: float) -> float:
        """Of a step with such an all-reduce; the all-reduce alone where nothing else is known."""
        return cost.step_seconds(self.compute_seconds or 0.0, allreduce, self.overlap)


@dataclass(frozen=True)
class Prices:
    """Of one machine for an hour, in any currency; None where it is not known."""

    worker: float | None = None
    reducer: float | None = None


@dataclass(frozen=True)
class Cluster:
    """What is planned for; rates in Gbit/s of one NIC, each way."""

    workers: int
    worker_gbps: float
    reducer_gbps: float
    gradient_bytes: int
    step: Step = field(default_factory=Step)
    prices: Prices = field(default_factory=Prices)

    def ring_seconds(self) -> float:
        return model.ring_seconds(self.gradient_bytes, self.workers, self.worker_gbps)

    def ring_step_seconds(self) -> float:
        return self.step.seconds(self.ring_seconds())

    def ring_cost(self) -> float | None:
        """Of a step over a ring."""
        return self._cost(self.ring_step_seconds(), 0)

    def choice(self, reducers: int) -> Choice:
        """What so many reducers give."""
        hosts = (self.workers, self.worker_gbps, reducers, self.reducer_gbps)
        seconds = model.reducer_seconds(self.gradient_bytes, *hosts)
        ring, ring_step = self.ring_seconds(), self.ring_step_seconds()
        step = self.step.seconds(seconds)
        return Choice(
            reducers=reducers,
            allreduce_seconds=seconds,
            speedup=ring / seconds,
            optimum_seconds=model.mixed_seconds(self.gradient_bytes, *hosts),
            step_seconds=step,
            step_speedup=ring_step / step,
            cost_per_step=self._cost(step, reducers),
            break_even_ratio=cost.break_even_ratio(self.workers, reducers, ring_step, step),
            winner=find_winner(seconds, ring),
        )

    def _cost(self, step: float, reducers: int) -> float | None:
        worker, reducer = self.prices.worker, self.prices.reducer
        if self.step.compute_seconds is None or worker is None or (reducer is None and reducers):
            return None
        return cost.step_cost(step, self.workers, worker, reducers, reducer or 0.0)


@dataclass(frozen=True)
class Choice:
    """One number of reducers. The speedups are the ring's time over theirs; the optimum is what a
    mix of workers and as many reducers could reach; the break-even ratio is the price of a reducer
    over that of a worker below which these pay off."""

    reducers: int
    allreduce_seconds: float
    speedup: float
    optimum_seconds: float
    step_seconds: float
    step_speedup: float
    cost_per_step: float | None
    break_even_ratio: float
    winner: Winner


@dataclass(frozen=True)
class Plan:
    """The answer: the chosen number of reducers, and what fewer would give."""

    cluster: Cluster
    chosen: Choice
    needed: int
    to_beat_ring: int | None
    choices: tuple[Choice, ...]

    @property
    def break_even_price(self) -> float | None:
        """Of one reducer for an hour; None where a worker's price is not known."""
        worker = self.cluster.prices.worker
        return None if worker is None else worker * self.chosen.break_even_ratio

    @property
    def cheapest(self) -> Choice | None:
        """The least cost of a step, of ``choices``; None where a ring costs no more, or none is
        known."""
        priced = [(c.cost_per_step, c) for c in self.choices if c.cost_per_step is not None]
        ring = self.cluster.ring_cost()
        if not priced or ring is None:
            return None
        least, choice = min(priced, key=lambda pair: pair[0])
        return choice if least < ring * (1 - _EQUAL) else None


def find_winner(reducer_seconds: float, ring_seconds: float) -> Winner:
    """Who takes less time."""
    if math.isclose(reducer_seconds, ring_seconds, rel_tol=_EQUAL):
        return "neither"
    return "reducers" if reducer_seconds < ring_seconds else "ring"


def make_plan(cluster: Cluster, reducers: int | None = None) -> Plan:
    """The plan for ``reducers``, or for as many as are needed.

    Raises ValueError with field, expected and got for a value that cannot be.
    """
    rates = (cluster.workers, cluster.worker_gbps, cluster.reducer_gbps)
    needed = model.reducers_needed(*rates)
    to_beat_ring = model.reducers_to_beat_ring(*rates)
    chosen = cluster.choice(needed if reducers is None else reducers)
    shown = {*range(1, needed + 1, math.ceil(needed / _MOST_ROWS)), needed, chosen.reducers}
    if to_beat_ring is not None:
        shown |= {to_beat_ring - 1, to_beat_ring} - {0}
    choices = tuple(cluster.choice(count) for count in sorted(shown))
    return Plan(cluster, chosen, needed, to_beat_ring, choices)
