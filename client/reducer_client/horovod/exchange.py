"""One round of negotiation on the wire: every rank's bytes to every rank.

Slots have a fixed size, so that a round can begin before anyone knows what the others have to say;
all see all lengths in it, and where one does not fit, a second round carries what is long.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from reducer_client.arrays import Array
from reducer_client.horovod.gathering import AnyGroup, AnyWork

KEY = "negotiate"
SLOT_BYTES = 256
# Length of the announcements in bytes, and when they were sent, in seconds of the wall clock.
_HEADER = struct.Struct("<Id")
ROOM = SLOT_BYTES - _HEADER.size


class Heard(NamedTuple):
    """A rank's message of a round, and the rank's clock when it was sent."""

    announced: bytes
    sent: float


def exchange(group: AnyGroup, announced: bytes, wait: Callable[[AnyWork], Array]) -> list[Heard]:
    """Exchange messages; returns one of each rank. ``wait`` waits for a work of the group."""
    header = _HEADER.pack(len(announced), time.time())
    slot = np.frombuffer((header + announced[:ROOM]).ljust(SLOT_BYTES, b"\0"), np.uint8)
    slots = [slot.tobytes() for slot in wait(group.all_gather(slot, key=KEY))]
    headers = [_HEADER.unpack_from(slot) for slot in slots]
    longest = max(length for length, _ in headers)
    if longest > ROOM:
        whole = np.frombuffer(announced.ljust(longest, b"\0"), np.uint8)
        said = [row.tobytes() for row in wait(group.all_gather(whole, key=f"{KEY}/long"))]
    else:
        said = [slot[_HEADER.size :] for slot in slots]
    return [Heard(s[:length], sent) for s, (length, sent) in zip(said, headers, strict=True)]
