"""One round of negotiation: every rank sends a message to every rank.

Each rank sends a block of fixed size, so that a round can begin before the lengths are known. A
block includes the length of the message. If a message does not fit, a second round sends all
messages.
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
BLOCK_BYTES = 256
# Length of the announcements in bytes, and the time of sending in seconds (wall clock).
_HEADER = struct.Struct("<Id")
ROOM = BLOCK_BYTES - _HEADER.size


class Heard(NamedTuple):
    """The message of one rank in a round, and the rank's wall clock when it sent the message."""

    announced: bytes
    sent: float


def exchange(group: AnyGroup, announced: bytes, wait: Callable[[AnyWork], Array]) -> list[Heard]:
    """Send a message to all ranks; returns all messages by rank. ``wait`` waits for a work."""
    header = _HEADER.pack(len(announced), time.time())
    block = np.frombuffer((header + announced[:ROOM]).ljust(BLOCK_BYTES, b"\0"), np.uint8)
    blocks = [block.tobytes() for block in wait(group.all_gather(block, key=KEY))]
    headers = [_HEADER.unpack_from(block) for block in blocks]
    longest = max(length for length, _ in headers)
    if longest > ROOM:
        whole = np.frombuffer(announced.ljust(longest, b"\0"), np.uint8)
        messages = [row.tobytes() for row in wait(group.all_gather(whole, key=f"{KEY}/long"))]
    else:
        messages = [block[_HEADER.size :] for block in blocks]
    return [Heard(s[:length], sent) for s, (length, sent) in zip(messages, headers, strict=True)]
