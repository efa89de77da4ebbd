"""A plan: the model's times and costs of one cluster for each number of reducers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from reducer_tools.planner import cores, cost, lanes, network_time, reducer_count
from reducer_tools.planner.lanes import Flows

Winner = Literal["reducers", "ring", "neither"]
# Maximum number of rows, about. A plan with more needed reducers leaves some numbers out.
_MOST_ROWS = 64
# Relative difference up to which times are equal, because only rounding makes them differ.
_EQUAL = 1e-9


@dataclass(frozen=True)
class Step:
    """A training step without its all-reduce.

    ``compute_seconds`` is None if unknown. ``overlap`` is the fraction of the computation that can
    hide communication.
    """

    compute_seconds: float | None = None
    overlap: float = 0.0

    def __post_init__(self) -> None:
        cost.check_amount("compute", "seconds", self.compute_seconds)
        cost.check_overlap(self.overlap)

    def seconds(self, allreduce: float) -> float:
        """The time of a step with this all-reduce time. An unknown computation counts as 0."""
        return cost.step_seconds(self.compute_seconds or 0.0, allreduce, self.overlap)


@dataclass(frozen=True)
class Prices:
    """Prices of one machine for an hour, in any currency; None if unknown."""

    worker: float | None = None
    reducer: float | None = None


@dataclass(frozen=True)
class Cluster:
    """The cluster to plan for. Rates are in Gbit/s of one NIC, each way."""

    workers: int
    worker_gbps: float
    reducer_gbps: float
    gradient_bytes: int
    step: Step = field(default_factory=Step)
    prices: Prices = field(default_factory=Prices)
    flows: Flows = field(default_factory=Flows)

    def ring_seconds(self) -> float:
        """The time of a ring with enough connections: NCCL, for one, opens several."""
        return network_time.ring_seconds(self.gradient_bytes, self.workers, self.worker_gbps)

    def ring_step_seconds(self) -> float:
        return self.step.seconds(self.ring_seconds())

    def ring_cost(self) -> float | None:
        """The cost of a step over a ring; None if a price or the computation is unknown."""
        return self._cost(self.ring_step_seconds(), 0)

    def choice(self, reducers: int) -> Choice:
        """The times and costs with this number of dedicated reducers."""
        seconds = self.allreduce_seconds(reducers)
        with_one_more = self.allreduce_seconds(min(reducers + 1, network_time.MOST_REDUCERS))
        ring, ring_step = self.ring_seconds(), self.ring_step_seconds()
        step = self.step.seconds(seconds)
        return Choice(
            reducers=reducers,
            lanes=(self.flows.lanes or self.recommended_lanes(reducers)) if reducers else 0,
            allreduce_seconds=seconds,
            speedup=cost.speedup(ring, seconds),
            alone_seconds=self.alone_seconds(reducers) if reducers else None,
            one_more_saves_seconds=seconds - with_one_more,
            step_seconds=step,
            step_speedup=cost.speedup(ring_step, step),
            cost_per_step=self._cost(step, reducers),
            break_even_ratio=self._break_even_ratio(reducers, step),
            winner=find_winner(seconds, ring),
        )

    def allreduce_seconds(self, reducers: int) -> float:
        """The time with this number of dedicated reducers, and hosted ones."""
        return network_time.mixed_seconds(self.gradient_bytes, *self._hosts(reducers))

    def alone_seconds(self, reducers: int) -> float:
        """The time with this number of dedicated reducers, 1 or more, without hosted ones."""
        reached = (self.workers, self.reached_gbps(reducers), reducers, self.reducer_gbps)
        return network_time.reducer_seconds(self.gradient_bytes, *reached)

    def hosted_share(self, reducers: int) -> Fraction:
        """The part of the array that all hosted reducers together sum."""
        return network_time.hosted_share(*self._hosts(reducers))

    def worker_share(self, reducers: int) -> Fraction:
        """Gbit/s that the NICs allow a worker to dedicated reducers, each way."""
        return lanes.worker_share(self.workers, self.worker_gbps, reducers, self.reducer_gbps)

    def reached_gbps(self, reducers: int) -> float:
        """The rate of a worker's NIC, or of its connections to dedicated reducers if less."""
        if self.flows.to_reducer is None:
            return self.worker_gbps
        return min(self.worker_gbps, float(reducers * self.flows.to_reducer))

    def worker_cores(self, reducers: int) -> tuple[float, float]:
        """How many cores the client and the hosted reducer keep busy: least and most.

        The client moves the whole array, each way. The hosted reducer moves its share once for each
        worker, which is as much as all hosted reducers have of one array.
        """
        time = network_time.least_time(*self._hosts(reducers))
        array_gbps = 1 / time if time else Fraction(0)
        client = cores.WORKER.cores(array_gbps)
        hosted = cores.REDUCER.cores(array_gbps * self.hosted_share(reducers))
        return client[0] + hosted[0], client[1] + hosted[1]

    def reducer_cores(self, reducers: int) -> tuple[float, float]:
        """How many cores the shares of all workers keep busy at a dedicated reducer.

        Least and most; 0 without a dedicated reducer.
        """
        share = self.worker_share(reducers) * self.workers / reducers if reducers else Fraction(0)
        return cores.REDUCER.cores(share)

    def recommended_lanes(self, reducers: int) -> int:
        """The number of lanes for a dedicated reducer's CPU and for the workers' connections.

        0 without a dedicated reducer.
        """
        if not reducers:
            return 0
        share = self.worker_share(reducers)
        for_cpu = lanes.lanes_for_cpu(share, self.workers, reducers)
        if self.flows.gbps is None:
            return for_cpu
        return max(for_cpu, lanes.lanes_for_connections(share, reducers, self.flows.gbps))

    def _hosts(self, reducers: int) -> tuple[int, float, int, float, Fraction | None]:
        rates = (self.workers, self.worker_gbps, reducers, self.reducer_gbps)
        return (*rates, self.flows.to_reducer)

    def _break_even_ratio(self, reducers: int, step: float) -> float | None:
        if not reducers:
            return None
        return cost.break_even_ratio(self.workers, reducers, self.ring_step_seconds(), step)

    def _cost(self, step: float, reducers: int) -> float | None:
        worker, reducer = self.prices.worker, self.prices.reducer
        if self.step.compute_seconds is None or worker is None or (reducer is None and reducers):
            return None
        return cost.step_cost(step, self.workers, worker, reducers, reducer or 0.0)


@dataclass(frozen=True)
class Choice:
    """The times and costs of one number of dedicated reducers.

    The workers host reducers as well, except in ``alone_seconds``. A speedup is the ring's time
    divided by the reducers' time.

    Attributes:
        lanes: lanes of each dedicated reducer, the given or the recommended number; 0 for 0
            reducers.
        alone_seconds: the time of an all-reduce without hosted reducers; None for 0 reducers.
        one_more_saves_seconds: what one more dedicated reducer saves of an all-reduce.
        break_even_ratio: `cost.break_even_ratio`; None for 0 reducers.
    """

    reducers: int
    lanes: int
    allreduce_seconds: float
    speedup: float
    alone_seconds: float | None
    one_more_saves_seconds: float
    step_seconds: float
    step_speedup: float
    cost_per_step: float | None
    break_even_ratio: float | None
    winner: Winner


@dataclass(frozen=True)
class Plan:
    """The plan: the chosen number of reducers, and other numbers for comparison.

    Attributes:
        needed: the number of dedicated reducers beyond which more gain nothing.
        to_beat_ring: the least number that is faster than a ring without hosted reducers; None if
            none is.
        choices: rows for numbers of dedicated reducers, ascending from 0.
    """

    cluster: Cluster
    chosen: Choice
    needed: int
    to_beat_ring: int | None
    choices: tuple[Choice, ...]

    @property
    def break_even_price(self) -> float | None:
        """The price of a reducer below which it pays off.

        None if a worker's price is unknown, or for 0 reducers.
        """
        worker, ratio = self.cluster.prices.worker, self.chosen.break_even_ratio
        return None if worker is None or ratio is None else worker * ratio

    @property
    def cheapest(self) -> Choice | None:
        """The choice with the cheapest step, the first of equal ones; None if a cost is unknown."""
        priced = [(c.cost_per_step, c) for c in self.choices if c.cost_per_step is not None]
        if len(priced) < len(self.choices):
            return None
        least = min(each for each, _ in priced)
        return next(choice for each, choice in priced if each <= least * (1 + _EQUAL))


def find_winner(reducer_seconds: float, ring_seconds: float) -> Winner:
    """The one that takes less time."""
    if math.isclose(reducer_seconds, ring_seconds, rel_tol=_EQUAL):
        return "neither"
    return "reducers" if reducer_seconds < ring_seconds else "ring"


def make_plan(cluster: Cluster, reducers: int | None = None) -> Plan:
    """Make the plan for this number of dedicated reducers; None means as many as are needed.

    Raises ValueError with field, expected and got for an invalid value.
    """
    hosts = (cluster.workers, cluster.worker_gbps, cluster.reducer_gbps)
    rates = (*hosts, cluster.flows.to_reducer)
    needed = reducer_count.reducers_needed(*rates)
    to_beat_ring = reducer_count.reducers_to_beat_ring(*rates)
    chosen = cluster.choice(needed if reducers is None else reducers)
    shown = {0, *range(1, needed + 1, math.ceil(needed / _MOST_ROWS)), needed, chosen.reducers}
    if to_beat_ring is not None:
        shown |= {to_beat_ring - 1, to_beat_ring}
    choices = tuple(cluster.choice(count) for count in sorted(shown))
    return Plan(cluster, chosen, needed, to_beat_ring, choices)
