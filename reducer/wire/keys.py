"""Names of keys and positions in them (PROTOCOL.md, sections 2 and 8)."""

from __future__ import annotations

from typing import Final

from reducer.wire.codes import MAX_CHUNKS

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK: Final = (1 << 64) - 1


def key_id(name: str) -> int:
    """64-bit FNV-1a of the UTF-8 name."""
    value = _FNV_OFFSET
    for byte in name.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def position(round_: int, chunk: int) -> int:
    """The place of a chunk in the order of its key."""
    return round_ * MAX_CHUNKS + chunk
