"""What the demo runs."""

from __future__ import annotations

from dataclasses import dataclass

from reducer_tools.netlab import Nic


@dataclass(frozen=True)
class Case:
    """Numbers of workers, reducers and steps. ``rate`` of each NIC has tc's syntax.

    ``obstacle``: why all programs are on loopback, without limited NICs; "" if they are on hosts.
    """

    workers: int
    reducers: int
    steps: int
    rate: str
    obstacle: str

    @property
    def hosts(self) -> tuple[list[str], list[str]]:
        """The names of the hosts of the workers, and of the reducers."""
        return [f"w{n}" for n in range(self.workers)], [f"r{n}" for n in range(self.reducers)]

    @property
    def ring_factor(self) -> float:
        """How often a ring sends each gradient through a NIC: 2(n-1)/n."""
        return 2 * (self.workers - 1) / self.workers

    @property
    def reducer_factor(self) -> float:
        """The same with reducers, where the busiest NIC may be a reducer's if they are few."""
        return max(1.0, self.workers / self.reducers)

    @property
    def most_gain(self) -> float:
        """How much faster reducers can be than a ring, if nothing but the NICs takes time."""
        return self.ring_factor / self.reducer_factor

    @property
    def rate_in_words(self) -> str:
        bits = Nic(self.rate).bits_per_second or 0.0
        return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
