"""The document of an elastic job: its era, its members, and the newest view that was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer_client.errors import ProtocolError

INCARNATION_BYTES = 16
MOST_GONE = 128
_FORM = 1  # of the document's bytes


@dataclass(frozen=True)
class Document:
    """What the workers of a job have decided. The registry keeps it; compare-and-set changes it.

    Attributes:
        era: number of the run that the members form; each has ranks and rounds of its own.
        members: the incarnation of each rank of the era, in bytes.
        holders: the ranks below this number have the job's state; 0: there is none yet.
        step: steps that were complete when the era began.
        epoch: of the newest view of the era. The next view has a greater one.
        view: the first route of that view, as the lanes take it; b"" if all members are in.
        registry: incarnation of the registry that the document was first written to.
        addresses: of the reducers of the era.
        gone: members of earlier eras that are out, the last MOST_GONE of them. Their leases may
            outlive them, and a process that comes back has another incarnation.
    """

    era: int
    members: tuple[bytes, ...]
    holders: int = 0
    step: int = 0
    epoch: int = 0
    view: bytes = b""
    registry: str = ""
    addresses: tuple[str, ...] = ()
    gone: tuple[bytes, ...] = ()

    def next_era(
        self,
        members: Sequence[bytes],
        holders: int,
        step: int,
        registry: str,
        addresses: tuple[str, ...] = (),
    ) -> Document:
        """The document of the era after this one; without ``addresses``, on the same reducers."""
        out = [member for member in self.members if member not in members]
        gone = (*self.gone, *out)[-MOST_GONE:]
        return Document(
            self.era + 1,
            tuple(members),
            holders,
            step,
            registry=registry,
            addresses=addresses or self.addresses,
            gone=gone,
        )

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(
            [_FORM, self.era, list(self.members), self.holders, self.step, self.epoch, self.view,
             self.registry, list(self.addresses), list(self.gone)]
        )  # fmt: skip
        return packed


def decode(data: bytes) -> Document | None:
    """The document in these bytes; None if there is none. Raises ProtocolError."""
    if not data:
        return None
    try:
        form, era, members, holders, step, epoch, view, registry, addresses, gone = msgpack.unpackb(
            data
        )
        numbers = (era, holders, step, epoch)
        if form != _FORM or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError(f"form {form}, numbers {numbers}")
        texts = (registry, *addresses)
        if type(view) is not bytes or any(type(t) is not str for t in texts):
            raise ValueError("a view, a registry or an address of the wrong kind")
        if holders > len(members) or not addresses:
            raise ValueError(f"{holders} holders of {len(members)} members, reducers {addresses}")
        if any(type(m) is not bytes or len(m) != INCARNATION_BYTES for m in (*members, *gone)):
            raise ValueError("a member that is no incarnation")
        return Document(
            era, tuple(members), holders, step, epoch, view, registry, tuple(addresses),
            tuple(gone),
        )  # fmt: skip
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(
            f"the registry's document of the job is not one of this release ({error}): give the "
            "job another run id (REDUCER_RUN_ID)"
        ) from None
