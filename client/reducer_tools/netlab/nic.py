"""The NIC of a host in a lab."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A full frame of 1,514 bytes carries 1,448 bytes of TCP payload.
PAYLOAD_SHARE = 1448 / 1514


@dataclass(frozen=True)
class Nic:
    """A NIC. ``rate`` has tc's syntax (``1gbit``), None for no limit; ``limit`` is the queue."""

    rate: str | None = None
    limit: str = "4mb"

    def __post_init__(self) -> None:
        if self.bits_per_second == 0:
            raise ValueError(f"rate {self.rate!r}: expected more than 0")

    @property
    def bits_per_second(self) -> float | None:
        """The rate, None for no limit. Raises ValueError for a rate that tc does not accept."""
        if self.rate is None:
            return None
        match = re.fullmatch(r"([0-9.]+)([kmg]?)bit", self.rate.lower())
        if match is None:
            raise ValueError(f"rate {self.rate!r}: expected a number with kbit, mbit or gbit")
        return float(match[1]) * {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]]

    @property
    def bytes_per_second(self) -> float | None:
        bits = self.bits_per_second
        return None if bits is None else bits / 8
