"""The ranks that a run has lost, as bytes (PROTOCOL.md, section 16)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from reducer.wire.codes import MAX_LOSSES, MAX_WORLD_SIZE
from reducer.wire.errors import BadFrameError

# (epoch, rank): from this epoch on, the rank is out.
Losses = tuple[tuple[int, int], ...]
_LOSS: Final = struct.Struct("<IH")


def pack_losses(losses: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(_LOSS.pack(epoch, rank) for epoch, rank in losses)


def parse_losses(packed: bytes) -> Losses:
    """The losses in their order; raises BadFrameError.

    >>> parse_losses(pack_losses([(1, 3), (1, 5), (2, 0)]))
    ((1, 3), (1, 5), (2, 0))
    """
    if len(packed) % _LOSS.size or len(packed) > MAX_LOSSES * _LOSS.size:
        raise BadFrameError(
            f"'lost' must be at most {MAX_LOSSES} items of {_LOSS.size} bytes, "
            f"got {len(packed)} bytes"
        )
    losses = [(int(epoch), int(rank)) for epoch, rank in _LOSS.iter_unpack(packed)]
    before = (1, -1)
    for loss in losses:
        if loss <= before or loss[1] >= MAX_WORLD_SIZE:
            raise BadFrameError(
                f"the items of 'lost' must ascend from epoch 1, with ranks below "
                f"{MAX_WORLD_SIZE}, got {loss} after {before}"
            )
        before = loss
    if len({rank for _, rank in losses}) < len(losses):
        raise BadFrameError(f"'lost' names a rank twice: {losses!r:.200}")
    return tuple(losses)
