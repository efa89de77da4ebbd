"""Connections that have not said for which job they come, and which makes room for the next one.

A HELLO that is refused before it has named a job changes nothing: the connection lingers until its
worker has read why, or has gone.

The oldest makes room, as for prefaces, but of those that may join the same jobs, where these are
the most: who has proven one job cannot keep another out.
"""

from __future__ import annotations

from typing import Final

from reducer.core.surface.permit import Permit
from reducer.server import descriptors

MAX_SILENT: Final = 256

Jobs = frozenset[str]  # of a permit; none: any


class Silent:
    """Sessions by what they may join: the session that makes room is found without a walk."""

    def __init__(self) -> None:
        self._room = descriptors.room_for_newcomers(MAX_SILENT)
        self._count = 0
        self._groups: dict[Jobs, dict[int, None]] = {}  # in each the oldest session first

    def add(self, session: int, permit: Permit | None) -> None:
        self._groups.setdefault(_jobs(permit), {})[session] = None
        self._count += 1

    def remove(self, session: int, permit: Permit | None) -> bool:
        """False if the session has said HELLO, or has gone."""
        jobs = _jobs(permit)
        group = self._groups.get(jobs)
        if group is None or session not in group:
            return False
        del group[session]
        self._count -= 1
        if not group:
            del self._groups[jobs]
        return True

    @property
    def are_many(self) -> bool:
        """Whether silent sessions take more than half of the room: soon new ones displace them."""
        return self._count > self._room // 2

    def in_the_way(self) -> int | None:
        """The session to end so that another may come; None if there is room."""
        if self._count < self._room:
            return None
        most: dict[int, None] = {}
        for group in self._groups.values():
            if len(group) > len(most):
                most = group
        return next(iter(most))


def _jobs(permit: Permit | None) -> Jobs:
    return frozenset() if permit is None else permit.jobs
