"""Finds out which ranks share a host name, as Horovod defines its local ranks.

The hierarchy of torch uses a stricter rule (torch/hierarchy/layout.py): its ranks also share a
network namespace and a launcher.
"""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import dataclass

import numpy as np

from reducer_client.horovod.gathering import AnyGroup

_HOST_BYTES = 64
# The local rank if no launcher gives it.
_UNKNOWN = -1


@dataclass(frozen=True)
class Topology:
    """The place of a rank.

    ``local_rank`` and ``local_size`` count the ranks on this rank's host. ``cross_rank`` and
    ``cross_size`` count, over all hosts, the ranks that have the same local rank.
    """

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


def find_topology(group: AnyGroup, local_rank: int | None) -> Topology:
    """Exchange host names and return this rank's topology. Every rank must make this call.

    ``local_rank`` is the launcher's value, or None.
    """
    host = socket.gethostname().encode()[-_HOST_BYTES:].ljust(_HOST_BYTES, b"\0")
    said = np.array([_UNKNOWN if local_rank is None else local_rank], np.int32).tobytes()
    mine = np.frombuffer(host + said, np.uint8)
    rows = [row.tobytes() for row in group.all_gather(mine, key="hosts").wait()]
    hosts = [row[:_HOST_BYTES] for row in rows]
    given = [int(np.frombuffer(row[_HOST_BYTES:], np.int32)[0]) for row in rows]
    return arrange(group.rank, hosts, given)


def arrange(rank: int, hosts: list[bytes], given: list[int]) -> Topology:
    """The topology of one rank, from the host and the given local rank of every rank."""
    seen: Counter[bytes] = Counter()
    local = []
    for host, said in zip(hosts, given, strict=True):
        local.append(seen[host] if said == _UNKNOWN else said)
        seen[host] += 1
    peers = [other for other, number in enumerate(local) if number == local[rank]]
    return Topology(
        local_rank=local[rank],
        local_size=seen[hosts[rank]],
        cross_rank=peers.index(rank),
        cross_size=len(peers),
        homogeneous=len(set(seen.values())) == 1,
    )
