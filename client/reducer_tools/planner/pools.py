"""The worker pools of a job, and whether the third pool has enough reducers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from reducer_tools.planner.machines import Machine
from reducer_tools.planner.network_time import exact


@dataclass(frozen=True)
class Pool:
    """Replicas on one machine type. ``path`` is the field that names the machine type."""

    role: str
    path: str
    replicas: int
    machine: str
    accelerator: str | None = None
    accelerators: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which the table may have the machine: with accelerators, and without."""
        if self.accelerator is None:
            return (self.machine,)
        return f"{self.machine}+{self.accelerators}x{self.accelerator}", self.machine


@dataclass(frozen=True)
class Job:
    """The pools of a specification.

    ``workers`` are the pools that train, the primary first. Evaluators are left out, because they
    take no part in an all-reduce.
    """

    workers: tuple[Pool, ...]
    reducers: Pool | None


@dataclass(frozen=True)
class RatedPool:
    """A pool with the rate and the price of its machines."""

    pool: Pool
    machine: Machine

    @property
    def egress_gbps(self) -> Fraction:
        return self.pool.replicas * exact(self.machine.gbps)


@dataclass(frozen=True)
class Sizing:
    """Compares the bandwidth of the third pool with the workers'.

    By the rule of Vertex AI's "Distributed training", the third pool's bandwidth must cover the
    bandwidth of the first two.
    """

    workers: tuple[RatedPool, ...]
    reducers: RatedPool | None

    @property
    def pools(self) -> tuple[RatedPool, ...]:
        return self.workers if self.reducers is None else (*self.workers, self.reducers)

    @property
    def world_size(self) -> int:
        """The number of hosts that train."""
        return sum(rated.pool.replicas for rated in self.workers)

    @property
    def demand_gbps(self) -> Fraction:
        """The workers' total egress; 0 for a single worker, which does not reduce."""
        if self.world_size < 2:
            return Fraction(0)
        return sum((rated.egress_gbps for rated in self.workers), Fraction(0))

    @property
    def supply_gbps(self) -> Fraction:
        return self.reducers.egress_gbps if self.reducers else Fraction(0)

    @property
    def is_large_enough(self) -> bool:
        return self.supply_gbps >= self.demand_gbps

    @property
    def slowest(self) -> Machine:
        """The workers' machine type with the slowest NIC, for which all workers wait."""
        return min((rated.machine for rated in self.workers), key=lambda machine: machine.gbps)

    @property
    def worker_price(self) -> float | None:
        """The mean price of all workers; None if a price is unknown."""
        prices = [rated.machine.price for rated in self.workers]
        if None in prices:
            return None
        total = sum(r.pool.replicas * (r.machine.price or 0.0) for r in self.workers)
        return total / self.world_size

    @property
    def is_mixed(self) -> bool:
        """Whether the workers have NICs of different rates."""
        return len({rated.machine.gbps for rated in self.workers}) > 1

    def needed(self, reducer_gbps: float) -> int:
        """The number of reducers with this NIC that covers the workers' egress.

        For example 16 reducers at 32 Gbit/s for 5 workers at 100 Gbit/s, and 25 for 8 workers.
        """
        return math.ceil(self.demand_gbps / exact(reducer_gbps))
