"""The preface and the fixed frame header (PROTOCOL.md, sections 1 and 2).

The CRC function is an argument everywhere: this layer computes nothing heavy and imports nothing
native.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntFlag
from typing import Final, NamedTuple

from reducer.errors import BadFrameError, CorruptedError, ProtocolVersionError
from reducer.wire.codes import (
    MAX_CHUNK_BYTES,
    MAX_CONTROL_BYTES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    MessageKind,
)

Buffer = bytes | bytearray | memoryview
Crc = Callable[[Buffer], int]

PREFACE_MAGIC: Final = b"ORSP"
FRAME_MAGIC: Final = b"ORSF"
PREFACE_SIZE: Final = 16
HEADER_SIZE: Final = 80
NO_RANK: Final = 0xFFFF

_PREFACE: Final = struct.Struct("<4sBBHH6s")
_HEADER: Final = struct.Struct("<4sBBBBBBHHHIIQQQQQIII")
_CRC: Final = struct.Struct("<I")
_HEADER_AND_CRC: Final = struct.Struct(_HEADER.format + "I")
_CRC_OFFSET: Final = _HEADER.size
assert _PREFACE.size == PREFACE_SIZE
assert _HEADER.size + _CRC.size == HEADER_SIZE

_KINDS: Final = frozenset(int(kind) for kind in MessageKind)
_DATA_KINDS: Final = frozenset((int(MessageKind.CONTRIBUTION), int(MessageKind.RESULT)))
_EMPTY_KINDS: Final = frozenset(
    int(kind) for kind in (MessageKind.BYE, MessageKind.GRANT, MessageKind.DESCRIBE)
)


class PrefaceFlag(IntFlag):
    PSK = 1  # the handshake of section 12 comes before the first frame
    TLS = 2  # all that follows is TLS (section 13); never both


_MODES: Final = frozenset((0, int(PrefaceFlag.PSK), int(PrefaceFlag.TLS)))


class Preface(NamedTuple):
    """The first 16 bytes of a connection."""

    major: int
    minor: int
    flags: int
    lane: int


class Header(NamedTuple):
    """One frame header; fields as in PROTOCOL.md, section 2, without magic, version and CRC."""

    kind: int
    dtype: int = 0
    op: int = 0
    collective: int = 0
    flags: int = 0
    rank: int = NO_RANK
    root: int = 0
    epoch: int = 0
    chunk: int = 0
    key: int = 0
    round: int = 0
    count: int = 0  # type: ignore[assignment]  # hides tuple.count on purpose
    done: int = 0
    stable: int = 0
    length: int = 0
    route: int = 0
    payload_crc: int = 0


def pack_preface(lane: int, flags: int = 0) -> bytes:
    return _PREFACE.pack(PREFACE_MAGIC, PROTOCOL_MAJOR, PROTOCOL_MINOR, flags, lane, bytes(6))


def unpack_preface(data: Buffer) -> Preface:
    """Raises BadFrameError for what is no preface, ProtocolVersionError for another major."""
    magic, major, minor, flags, lane, reserved = _PREFACE.unpack(data)
    if magic != PREFACE_MAGIC:
        raise BadFrameError(f"not a reducer client: the first bytes are {bytes(data[:8])!r}")
    if major != PROTOCOL_MAJOR:
        raise ProtocolVersionError(
            f"the worker speaks protocol {major}.{minor}, "
            f"this reducer {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}: install the same release on both"
        )
    if flags not in _MODES or any(reserved):
        raise BadFrameError("reserved bits are set in the preface")
    return Preface(major, minor, flags, lane)


def pack_header(header: Header, crc: Crc) -> bytes:
    """The 80 bytes of `header`, with the header's own CRC."""
    (kind, dtype, op, collective, flags, rank, root, epoch, chunk, key, round_, count, done,
     stable, length, route, payload_crc) = header  # fmt: skip
    body = _HEADER.pack(
        FRAME_MAGIC, PROTOCOL_MAJOR, kind, dtype, op, collective, 0, flags, rank, root, epoch,
        chunk, key, round_, count, done, stable, length, route, payload_crc,
    )  # fmt: skip
    return body + _CRC.pack(crc(body))


def unpack_header(data: Buffer, crc: Crc) -> Header:
    """Check and unpack the first 80 bytes of `data`.

    Raises BadFrameError (magic, reserved byte, kind, length), ProtocolVersionError or
    CorruptedError (header CRC).
    """
    # fmt: off
    (magic, version, kind, dtype, op, collective, reserved, flags, rank, root, epoch, chunk, key,
     round_, count, done, stable, length, route, payload_crc,
     header_crc) = _HEADER_AND_CRC.unpack_from(data)
    # fmt: on
    if magic != FRAME_MAGIC:
        raise BadFrameError(f"a frame begins with {magic!r}, expected {FRAME_MAGIC!r}")
    if version != PROTOCOL_MAJOR:
        raise ProtocolVersionError(f"a frame of version {version}, expected {PROTOCOL_MAJOR}")
    if header_crc != crc(data[:_CRC_OFFSET]):
        raise CorruptedError("the CRC-32C of a frame header does not match: bytes were changed")
    _check_kind(kind, reserved, length)
    # A third of the time of Header(...).
    return tuple.__new__(Header, (
        kind, dtype, op, collective, flags, rank, root, epoch, chunk, key, round_, count, done,
        stable, length, route, payload_crc,
    ))  # fmt: skip


def _check_kind(kind: int, reserved: int, length: int) -> None:
    if reserved:
        raise BadFrameError("a reserved byte of a frame header is set")
    if kind not in _KINDS:
        raise BadFrameError(f"unknown frame kind {kind}")
    limit = MAX_CONTROL_BYTES
    if kind in _DATA_KINDS:
        limit = MAX_CHUNK_BYTES
    elif kind in _EMPTY_KINDS:
        limit = 0
    if length > limit:
        raise BadFrameError(
            f"{MessageKind(kind).name} frame of {length} bytes, the limit is {limit}"
        )
