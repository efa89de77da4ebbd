"""What each process of a job says of itself in its lease in the job's record."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer_client.elastic.document import INCARNATION_BYTES
from reducer_client.registry.interface import Record

LEASE_SECONDS = 5.0


@dataclass(frozen=True, order=True)
class Candidate:
    """A living process; candidates are ordered as they get their ranks.

    Attributes:
        wish: the rank that the process would like to have.
        incarnation: identifies this start of the process.
        name: for people, such as ``host:pid``.
        layout: digest of the names, shapes and dtypes of its state; b"" if it brings none.
        registry, epoch: the registry at which it has registered as a member, and its newest view.
        has_state: whether it has the job's state, where no document can tell.
    """

    wish: int
    incarnation: bytes
    name: str = ""
    layout: bytes = b""
    registry: str = ""
    epoch: int = 0
    has_state: bool = False

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(
            [self.wish, self.name, self.layout, self.registry, self.epoch, self.has_state]
        )
        return packed


def candidates(record: Record) -> list[Candidate]:
    """The living processes in the record, in their order. What is malformed is left out."""
    found = []
    for holder, value in record.leases.items():
        try:
            incarnation = bytes.fromhex(holder)
            wish, name, layout, registry, epoch, has_state = msgpack.unpackb(value)
        except (ValueError, TypeError, msgpack.UnpackException):
            continue
        if len(incarnation) == INCARNATION_BYTES and type(wish) is int and type(epoch) is int:
            found.append(
                Candidate(wish, incarnation, name, layout, registry, epoch, has_state is True)
            )
    return sorted(found)
