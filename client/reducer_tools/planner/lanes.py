"""How many lanes each reducer needs, for its CPU and where the network limits each connection.

A worker has one TCP connection to each lane of each reducer. Clouds limit the rate F of one
connection (a flow), each way: with R reducers of L lanes a worker gets at most R x L x F, so that L
has to be at least BW / (R x F). Rates are in Gbit/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from reducer_tools.planner.network_time import check_count, check_positive, exact

# A lane takes 0.26 CPU seconds for each GB in and out over loopback, and 0.78 with frames of 1,500
# bytes (docs/speed.md): 8 Gbit/s keep 26 to 78 % of its core busy.
LANE_GBPS = 8
_MOST_LANES = 1024  # of `reducer serve --lanes`


@dataclass(frozen=True)
class Flows:
    """The limit of a connection in Gbit/s, each way, and the number of lanes of each reducer.

    None: no limit, and the recommended number of lanes.
    """

    gbps: float | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        if self.gbps is not None:
            check_positive("flow_gbps", self.gbps)
        if self.lanes is None:
            return
        check_count("lanes", self.lanes, _MOST_LANES)
        if self.gbps is None:
            raise ValueError(f"lanes: expected only with --flow-gbps, got {self.lanes}")

    @property
    def to_reducer(self) -> Fraction | None:
        """Gbit/s of all connections between a worker and a reducer; None if nothing limits them."""
        if self.gbps is None or self.lanes is None:
            return None
        return self.lanes * exact(self.gbps)


def worker_share(workers: int, worker_gbps: float, reducers: int, reducer_gbps: float) -> Fraction:
    """Gbit/s that the NICs allow a worker, each way: min(BW, R x BW_r / W)."""
    return min(exact(worker_gbps), reducers * exact(reducer_gbps) / workers)


def connections_needed(share: Fraction, flow_gbps: float) -> int:
    """How many connections a worker needs for its ``share``, a number of Gbit/s.

    >>> connections_needed(Fraction(100), 5), connections_needed(Fraction(100), 32)
    (20, 4)
    """
    return math.ceil(share / exact(flow_gbps))


def lanes_for_connections(share: Fraction, reducers: int, flow_gbps: float) -> int:
    """The least number of lanes with which connections do not limit a worker: BW / (R x F).

    >>> lanes_for_connections(Fraction(100), 4, 5)
    5
    """
    return math.ceil(share / (reducers * exact(flow_gbps)))


def lanes_for_cpu(share: Fraction, workers: int, reducers: int) -> int:
    """One lane for each `LANE_GBPS` that pass a reducer's NIC, each way.

    >>> lanes_for_cpu(Fraction(100), 8, 25)  # 32 Gbit/s
    4
    """
    return math.ceil(share * workers / reducers / LANE_GBPS)
