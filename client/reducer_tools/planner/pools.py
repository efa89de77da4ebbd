"""The pools of a job: who trains, who reduces, and whether the third pool is large enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from reducer_tools.planner.machines import Machine


@dataclass(frozen=True)
class Pool:
    """Machines of one kind. ``path`` is where a specification names the machine type."""

    role: str
    path: str
    replicas: int
    machine: str
    accelerator: str | None = None
    accelerators: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """As a table of machines may name it: with its accelerators, and without."""
        if self.accelerator is None:
            return (self.machine,)
        return f"{self.machine}+{self.accelerators}x{self.accelerator}", self.machine


@dataclass(frozen=True)
class Job:
    """What a specification asks for. ``workers`` are the pools that train, the primary first;
    evaluators have no part in an all-reduce."""

    workers: tuple[Pool, ...]
    reducers: Pool | None

    @property
    def world_size(self) -> int:
        """Hosts that train."""
        return sum(pool.replicas for pool in self.workers)


@dataclass(frozen=True)
class RatedPool:
    """A pool and what is known of its machines."""

    pool: Pool
    machine: Machine

    @property
    def egress_gbps(self) -> Fraction:
        return self.pool.replicas * exact(self.machine.gbps)


@dataclass(frozen=True)
class Sizing:
    """The rule of Vertex AI's "Distributed training": the third pool's bandwidth covers that of the
    first two."""

    workers: tuple[RatedPool, ...]
    reducers: RatedPool | None

    @property
    def pools(self) -> tuple[RatedPool, ...]:
        return self.workers if self.reducers is None else (*self.workers, self.reducers)

    @property
    def world_size(self) -> int:
        return sum(rated.pool.replicas for rated in self.workers)

    @property
    def demand_gbps(self) -> Fraction:
        """One worker alone has nobody to reduce with."""
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
        """The workers' machine that sets the pace of all."""
        return min((rated.machine for rated in self.workers), key=lambda machine: machine.gbps)

    @property
    def worker_price(self) -> float | None:
        """The mean of all workers; None where one is not known."""
        prices = [rated.machine.price for rated in self.workers]
        if None in prices:
            return None
        total = sum(r.pool.replicas * (r.machine.price or 0.0) for r in self.workers)
        return total / self.world_size

    @property
    def is_mixed(self) -> bool:
        """Whether some workers' NICs are faster than others'."""
        return len({rated.machine.gbps for rated in self.workers}) > 1

    def needed(self, reducer_gbps: float) -> int:
        """Reducers with such a NIC that are large enough.

        Of 5 workers at 100 Gbit/s against 32: 16. Of 8: 25.
        """
        return math.ceil(self.demand_gbps / exact(reducer_gbps))


def exact(gbps: float) -> Fraction:
    """The decimals as written: 3 x 0.1 covers 0.3."""
    return Fraction(str(gbps))
