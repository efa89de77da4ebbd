"""What a worker wants and knows about hosted reducers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Hosted = Literal["auto"] | bool


@dataclass(frozen=True)
class Hosting:
    """What a worker wants and knows about hosted reducers.

    Attributes:
        wanted: ``"auto"``, True or False.
        interface: the interface whose address the hosted reducer has; "" means the route decides.
        toward: a host that the route to the other machines is looked up for.
        ports: first and last port for the hosted reducer; (0, 0) means any free port.
        gbps: rate of this machine's NIC in Gbit/s; 0 if not given.
        dedicated_gbps: rates of the dedicated reducers; one value holds for all.
        congestion: TCP congestion control of the hosted reducer; "" means the system's.
        environment: the environment of the hosted reducer.
    """

    wanted: Hosted
    interface: str
    toward: str
    ports: tuple[int, int]
    gbps: float
    dedicated_gbps: tuple[float, ...]
    congestion: str
    environment: Mapping[str, str] = field(repr=False)

    def with_weights_given(self) -> Hosting:
        """The same where the program gives weights, which are for dedicated reducers only."""
        if self.wanted is True:
            raise ValueError(
                "weights and hosted=True: expected one of them, because the client chooses the "
                "weights of hosted reducers"
            )
        return replace(self, wanted=False)
