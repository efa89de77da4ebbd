"""Connections that have not said HELLO, and which of them makes room for the next one.

The oldest makes room, as for prefaces, but of those that may join the same, where these are the
most: who has proven one job cannot keep another out.
"""

from __future__ import annotations

from typing import Final

from reducer.core.permit import Place
from reducer.server import descriptors
from reducer.server.protocol import Connection

MAX_SILENT: Final = 256

Places = tuple[Place, ...]  # of a permit; none: anything


class Silent:
    """Groups the connections by what they may join: who makes room is found without a walk."""

    def __init__(self) -> None:
        self._room = descriptors.room_for_newcomers(MAX_SILENT)
        self._count = 0
        self._groups: dict[Places, dict[int, Connection]] = {}  # in each the oldest first

    def add(self, connection: Connection) -> None:
        group = self._groups.setdefault(_places(connection), {})
        group[connection.session] = connection
        self._count += 1

    def remove(self, connection: Connection) -> bool:
        """False if it has said HELLO, or has gone."""
        places = _places(connection)
        group = self._groups.get(places)
        if group is None or group.pop(connection.session, None) is None:
            return False
        self._count -= 1
        if not group:
            del self._groups[places]
        return True

    def in_the_way(self) -> Connection | None:
        """The one that makes room for another; None where there is room."""
        if self._count < self._room:
            return None
        most: dict[int, Connection] = {}
        for group in self._groups.values():
            if len(group) > len(most):
                most = group
        return next(iter(most.values()))


def _places(connection: Connection) -> Places:
    return () if connection.permit is None else connection.permit.places
