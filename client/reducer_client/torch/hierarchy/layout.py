"""Finds out which ranks share a host. Each rank gives a record of what it knows.

A host here means the ranks that one launcher started: LOCAL_WORLD_SIZE consecutive ranks in one
network namespace of one machine. The records are compared, not trusted: every rank sees all
records, so all ranks come to the same decision.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from reducer_client.config import find_local_ranks
from reducer_client.group import Group
from reducer_client.hosted.machine import machine_id

_RECORD = struct.Struct("<iib?16s")
_WANTED = {None: 0, True: 1, False: 2}


@dataclass(frozen=True)
class Layout:
    """``hosts`` hosts with ``local_size`` consecutive ranks each, in the order of ranks.

    ``rank`` is this worker's rank. ``cuda`` says whether the ranks have CUDA devices.
    """

    hosts: int
    local_size: int
    rank: int
    cuda: bool

    @property
    def host(self) -> int:
        """The number of this worker's host."""
        return self.rank // self.local_size

    @property
    def local_rank(self) -> int:
        """This worker's number on its host."""
        return self.rank % self.local_size

    def neighbour(self, local_rank: int) -> int:
        """The rank of the worker with this local rank on our host."""
        return self.host * self.local_size + local_rank

    def counterpart(self, host: int) -> int:
        """The rank of the worker with our local rank on another host."""
        return host * self.local_size + self.local_rank


@dataclass(frozen=True)
class HostRecord:
    """The record of a rank. ``wanted`` is its ``hierarchy`` option.

    Sizes are 0 and local ranks -1 if the launcher does not give them.
    """

    local_size: int
    local_rank: int
    wanted: bool | None
    cuda: bool
    machine: bytes

    def pack(self) -> bytes:
        wanted = _WANTED[self.wanted]
        return _RECORD.pack(self.local_size, self.local_rank, wanted, self.cuda, self.machine)


def unpack(record: bytes) -> HostRecord:
    """The record that `HostRecord.pack` has packed."""
    local_size, local_rank, wanted, cuda, machine = _RECORD.unpack(record)
    found = {number: choice for choice, number in _WANTED.items()}[wanted]
    return HostRecord(local_size, local_rank, found, cuda, machine)


def agree(group: Group, name: str, wanted: bool | None) -> tuple[Layout | None, str]:
    """The layout of the group's ranks, or None and the reason why there is none.

    All ranks must call this function. If a rank wants a hierarchy and the layout does not allow
    one, all ranks raise ValueError.
    """
    local_rank, local_size = find_local_ranks()
    mine = HostRecord(
        0 if local_size is None else local_size,
        -1 if local_rank is None else local_rank,
        wanted,
        torch.cuda.is_available(),
        machine_id(),
    )
    records = group.all_gather(np.frombuffer(mine.pack(), np.uint8), key=f"{name}/layout").wait()
    places = [unpack(record.tobytes()) for record in records]
    why_not = find_obstacle(places)
    if not why_not:
        hosts = len(places) // mine.local_size
        return Layout(hosts, mine.local_size, group.rank, mine.cuda), ""
    demanding = [rank for rank, place in enumerate(places) if place.wanted]
    if demanding:
        raise ValueError(f"hierarchy=True on rank {demanding[0]}, but {why_not}")
    return None, why_not


def find_obstacle(places: Sequence[HostRecord]) -> str:
    """Why ranks with these records cannot have a hierarchy; "" if they can."""
    size = places[0].local_size
    for rank, place in enumerate(places):
        if place.wanted is False:
            return f"rank {rank} has hierarchy=False"
        if place.local_size != size:
            return (
                f"rank 0 is one of {size} ranks on its host and rank {rank} one of "
                f"{place.local_size} (LOCAL_WORLD_SIZE): expected equally many on all hosts"
            )
        if place.cuda != places[0].cuda:
            return f"only one of the ranks 0 and {rank} has CUDA devices"
    if size < 2:
        return "no host has several ranks (LOCAL_WORLD_SIZE, which launchers set)"
    if len(places) % size or len(places) == size:
        return f"{len(places)} ranks are not several hosts of {size} (LOCAL_WORLD_SIZE)"
    for rank, place in enumerate(places):
        if place.local_rank not in (-1, rank % size):
            return (
                f"rank {rank} is local rank {place.local_rank}: expected {rank % size}, the ranks "
                "of a host must be consecutive"
            )
        first = rank - rank % size
        if place.machine != places[first].machine:
            return f"rank {rank} is on another host than rank {first}"
    return ""
