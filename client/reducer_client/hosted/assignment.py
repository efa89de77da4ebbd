"""Decides which machines host a reducer, and the share of every reducer. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

from reducer.shares import best_shares, least_time, weights_of
from reducer.wire.codes import MAX_WEIGHTED
from reducer_client.hosted.hosting import Hosted


@dataclass(frozen=True)
class Introduction:
    """What a rank says about itself.

    Attributes:
        machine: id of the machine (`hosted.machine`), as hexadecimal digits.
        address: the machine's own address.
        gbps: the rate of the NIC in Gbit/s; 0 if unknown.
        dedicated: number of the dedicated reducers.
        error: why the rank has no address.
        key: rank 0's: a random key for the hosted reducers, as hexadecimal digits.
        wanted: rank 0's: its ``hosted`` setting.
        dedicated_gbps: rank 0's: the rates of the dedicated reducers.
    """

    machine: str
    address: str
    gbps: float
    dedicated: int = 0
    error: str = ""
    key: str = field(default="", repr=False)
    wanted: Hosted = "auto"
    dedicated_gbps: Sequence[float] = ()

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Machine:
    """A machine of workers. ``ranks`` is ascending; the first one starts the reducer."""

    ranks: tuple[int, ...]
    address: str
    gbps: float


@dataclass(frozen=True)
class Assignment:
    """The reducers of a job.

    Attributes:
        dedicated: the numbers of the dedicated reducers that have a share.
        hosts: the machines whose hosted reducer has a share.
        weights: the shares, first of the dedicated reducers, then of the hosted ones.
        machines: the number of machines of workers.
        time: the network time of an all-reduce, as a multiple of the array's size divided by the
            rate of the slowest worker's NIC.
        time_without: the same without hosted reducers; None without dedicated ones.
        time_with_one_more: the same with one more dedicated reducer.
    """

    dedicated: tuple[int, ...]
    hosts: tuple[Machine, ...]
    weights: tuple[int, ...]
    machines: int
    time: float
    time_without: float | None
    time_with_one_more: float

    def describe(self) -> str:
        """Say in one line what was chosen, and what one more dedicated reducer would gain."""
        if self.machines == 1:
            return "one machine: one hosted reducer, no byte passes a NIC"
        text = (
            f"{self.machines} machines: {len(self.dedicated)} dedicated and {len(self.hosts)} "
            f"hosted reducers; network time {self.time:.2f} x (size / NIC rate)"
        )
        if self.time_without is not None:
            text += f", without hosted ones {self.time_without:.2f} x"
        return f"{text}; with one more dedicated reducer {self.time_with_one_more:.2f} x"


def find_machines(introductions: Sequence[Introduction]) -> list[Machine]:
    """The machines of the ranks, in the order of their first ranks."""
    found: dict[str, Machine] = {}
    for rank, one in enumerate(introductions):
        known = found.get(one.machine)
        found[one.machine] = (
            replace(known, ranks=(*known.ranks, rank))
            if known
            else Machine((rank,), one.address, one.gbps)
        )
    return list(found.values())


def assign(machines: Sequence[Machine], dedicated: int, gbps: Sequence[float]) -> Assignment:
    """The assignment with the least network time.

    Args:
        machines: the machines of the workers.
        dedicated: number of the dedicated reducers.
        gbps: their rates in Gbit/s. One value holds for all; without values they are as fast as the
            slowest worker. If a worker's rate is unknown, all NICs count as equal.
    """
    workers, reducers = _rates(machines, dedicated, gbps)
    shares = best_shares(workers, reducers)
    parts = [*shares.dedicated, *shares.hosted]
    used = [number for number, part in enumerate(parts) if part]
    slowest, all_workers = min(workers), sum(workers, Fraction())
    more = sum(reducers, Fraction()) + (reducers[-1] if reducers else slowest)
    without = max(1 / slowest, len(workers) / sum(reducers, Fraction())) if reducers else None
    return Assignment(
        dedicated=tuple(number for number in used if number < dedicated),
        hosts=tuple(machines[number - dedicated] for number in used if number >= dedicated),
        weights=_weights([parts[number] for number in used]),
        machines=len(machines),
        time=float(shares.time * slowest),
        time_without=None if without is None else float(without * slowest),
        time_with_one_more=float(least_time(len(workers), slowest, all_workers, more) * slowest),
    )


def _rates(
    machines: Sequence[Machine], dedicated: int, gbps: Sequence[float]
) -> tuple[list[Fraction], list[Fraction]]:
    workers = [Fraction(machine.gbps).limit_denominator(1000) for machine in machines]
    if not all(workers):
        return [Fraction(1)] * len(machines), [Fraction(1)] * dedicated
    given = [Fraction(rate).limit_denominator(1000) for rate in gbps] or [min(workers)]
    return workers, given if len(given) == dedicated else given[:1] * dedicated


def _weights(parts: Sequence[Fraction]) -> tuple[int, ...]:
    """Weights of the shares. Too many reducers for weights get equal shares."""
    return weights_of(parts) if len(parts) <= MAX_WEIGHTED else (1,) * len(parts)
