"""What the reducers say that they have done for a group."""

from __future__ import annotations

from reducer_client import Group


def bytes_taken(group: Group) -> int:
    """Payload that the reducers have taken from all ranks so far; all ranks must ask."""
    group.barrier()
    taken = sum(lane["bytes_in"] for lane in group.stats()["reducers"])
    group.barrier()
    return taken
