"""Reads and discards what peers send after the end of their connections.

Some peers read the last frames only after they have sent everything. No job pays for these reads.
Jobs take turns, so that a job whose connections keep sending does not delay another job's last
frames.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from reducer.server.data.connection import READ_BYTES, Connection
from reducer.server.data.turns import Turn

# How many connections are read once more before the loop serves others, and how many bytes of all
# of them between two ticks.
AT_ONCE: Final = 32
MOST_BYTES: Final = 4 << 20


class Leftovers:
    """Connections that wait for another read, by job, and the bytes read since the last tick."""

    def __init__(self) -> None:
        self._bytes = 0
        self._waiting: OrderedDict[Turn, deque[Connection]] = OrderedDict()

    def add(self, connection: Connection) -> None:
        """Queue the connection. It is not read until its turn comes."""
        waiting = self._waiting.get(connection.turn)
        if waiting is None:
            waiting = self._waiting[connection.turn] = deque()
        waiting.append(connection)

    def count_read(self) -> None:
        """Count a read of a closing connection.

        A read counts as READ_BYTES: even for a single byte the loop takes 6 us.
        """
        self._bytes += READ_BYTES

    @property
    def are_due(self) -> bool:
        return bool(self._waiting) and self._bytes < MOST_BYTES

    def take(self) -> list[Connection]:
        """The connections that are read before the loop serves others."""
        taken: list[Connection] = []
        while self._waiting and len(taken) < AT_ONCE:
            turn, waiting = self._waiting.popitem(last=False)
            taken.append(waiting.popleft())
            if waiting:
                self._waiting[turn] = waiting
        return taken

    def tick(self) -> None:
        self._bytes = 0
