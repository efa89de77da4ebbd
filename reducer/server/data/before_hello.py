"""Connections that have not said HELLO, and which of them makes room for the next one.

A HELLO that is refused before its job is known changes nothing: the connection stays until its
worker has read why, or has gone.

Connections that may join the same jobs are a group. The oldest connection of the largest group
makes room, so a worker with a proof for one job cannot keep another job out.
"""

from __future__ import annotations

from typing import Final

from reducer.core.surface.permit import Permit
from reducer.server import file_descriptors

MAX_BEFORE_HELLO: Final = 256

Jobs = frozenset[str]  # of a permit; empty: any job


class BeforeHello:
    """Sessions without HELLO, by the jobs that they may join. Which one makes room is found without
    a walk over the sessions.
    """

    def __init__(self) -> None:
        self._room = file_descriptors.room_for_newcomers(MAX_BEFORE_HELLO)
        self._count = 0
        self._groups: dict[Jobs, dict[int, None]] = {}  # the oldest session of each group first

    def add(self, session: int, permit: Permit | None) -> None:
        self._groups.setdefault(_jobs(permit), {})[session] = None
        self._count += 1

    def remove(self, session: int, permit: Permit | None) -> bool:
        """Returns False if the session has said HELLO or has gone."""
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
        """Whether these sessions take more than half of the room, so that new ones soon displace
        them.
        """
        return self._count > self._room // 2

    def to_displace(self) -> int | None:
        """The session that must make room for another one; None if there is room."""
        if self._count < self._room:
            return None
        most: dict[int, None] = {}
        for group in self._groups.values():
            if len(group) > len(most):
                most = group
        return next(iter(most))


def _jobs(permit: Permit | None) -> Jobs:
    return frozenset() if permit is None else permit.jobs
