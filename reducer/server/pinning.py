"""Chooses a core for each lane. Pure functions: `topology` reads the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """A logical CPU that the daemon may use.

    ``physical`` is equal for all hardware threads of a physical core. ``node`` is the NUMA node,
    None if unknown.
    """

    number: int
    physical: str
    node: int | None


def choose_cores(cores: Sequence[Core], lanes: int, nic_node: int | None) -> list[int]:
    """The number of the core for each lane. Expects at least as many cores as lanes.

    Physical cores come before second hardware threads, even on another NUMA node than the NIC's: a
    second thread has to share the arithmetic and the caches of the first. Then the NIC's node comes
    first, if it is known. Then high numbers come first, because drivers give the interrupts of
    receive queue 0, 1, ... to core 0, 1, ... by default.
    """
    threads: Counter[str] = Counter()
    ranked = []
    for core in sorted(cores, key=lambda core: core.number):
        is_far = nic_node is not None and core.node != nic_node
        ranked.append((threads[core.physical], is_far, -core.number))
        threads[core.physical] += 1
    return [-negative for _, _, negative in sorted(ranked)[:lanes]]
