"""A place for a partition: one lane of one reducer, in one start of its process."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """`reducer`: the incarnation of the lane's process; another one has other memory."""

    address: str
    lane: int
    reducer: bytes
