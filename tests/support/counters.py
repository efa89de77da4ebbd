"""Counters of the reducers for a group."""

from __future__ import annotations

from reducer_client import Group


def bytes_taken(group: Group) -> int:
    """Payload bytes that the reducers have received from all ranks; all ranks must call this."""
    group.barrier()
    taken = sum(lane["bytes_in"] for lane in group.stats()["reducers"])
    group.barrier()
    return taken
