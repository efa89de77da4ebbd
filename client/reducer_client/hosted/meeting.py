"""Where the ranks of a job meet before they know the addresses of their reducers."""

from __future__ import annotations

from typing import Any, Protocol

Record = dict[str, Any]


class Meeting(Protocol):
    """All ranks must exchange the same records, in the same order."""

    def exchange(self, name: str, record: Record) -> list[Record]:
        """Return the records of all ranks, by rank. Raises ReducerError if a rank does not come."""
