"""The preface and the fixed frame header (PROTOCOL.md, sections 1 and 2).

Callers pass the CRC function, so this layer needs no native code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntFlag
from typing import Final, NamedTuple

from reducer.wire.codes import (
    CHUNK_KINDS,
    LOG,
    MAX_CHUNK_BYTES,
    MAX_CONTROL_BYTES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    SCALARS_BYTES,
    MessageKind,
)
from reducer.wire.errors import BadFrameError, CorruptedError, ProtocolVersionError

Buffer = bytes | bytearray | memoryview
Crc = Callable[..., int]  # (data, CRC of the bytes before = 0)

PREFACE_MAGIC: Final = b"ORSP"
FRAME_MAGIC: Final = b"ORSF"
PREFACE_SIZE: Final = 16
HEADER_SIZE: Final = 80
NO_RANK: Final = 0xFFFF

_PREFACE: Final = struct.Struct("<4sBBHH6s")
_HEADER: Final = struct.Struct("<4sBBBBBBHHHIIQQQQQIII")
_CRC: Final = struct.Struct("<I")
_HEADER_AND_CRC: Final = struct.Struct(_HEADER.format + "I")
_CRC_WITH_CRC: Final = 0x48674BC7  # CRC-32C of any bytes followed by their own CRC-32C
assert _PREFACE.size == PREFACE_SIZE
assert _HEADER.size + _CRC.size == HEADER_SIZE

_KINDS: Final = frozenset(int(kind) for kind in MessageKind)
_EMPTY_KINDS: Final = frozenset(
    int(kind)
    for kind in (
        MessageKind.BYE,
        MessageKind.GRANT,
        MessageKind.DESCRIBE,
        MessageKind.PULL,
        MessageKind.RECEIPT,
        MessageKind.LOGGED,
    )
)


class PrefaceFlag(IntFlag):
    PSK = 1  # the handshake of section 12 comes before the first frame
    TLS = 2  # TLS begins after the preface (section 13); excludes PSK


_MODES: Final = frozenset((0, int(PrefaceFlag.PSK), int(PrefaceFlag.TLS)))


class Preface(NamedTuple):
    """The first 16 bytes of a connection."""

    major: int
    minor: int
    flags: int
    lane: int


_FIELDS: Final = (
    "kind", "dtype", "op", "collective", "flags", "rank", "root", "epoch", "chunk", "key", "round",
    "count", "done", "stable", "length", "route", "payload_crc",
)  # fmt: skip


class Header:
    """One frame header; fields as in PROTOCOL.md, section 2, without magic, version and CRC.

    A class instead of a named tuple, since mypyc compiles a class to a C struct.
    """

    __slots__ = _FIELDS

    def __init__(
        self,
        kind: int,
        dtype: int = 0,
        op: int = 0,
        collective: int = 0,
        flags: int = 0,
        rank: int = NO_RANK,
        root: int = 0,
        epoch: int = 0,
        chunk: int = 0,
        key: int = 0,
        round: int = 0,
        count: int = 0,
        done: int = 0,
        stable: int = 0,
        length: int = 0,
        route: int = 0,
        payload_crc: int = 0,
    ) -> None:
        self.kind = kind
        self.dtype = dtype
        self.op = op
        self.collective = collective
        self.flags = flags
        self.rank = rank
        self.root = root
        self.epoch = epoch
        self.chunk = chunk
        self.key = key
        self.round = round
        self.count = count
        self.done = done
        self.stable = stable
        self.length = length
        self.route = route
        self.payload_crc = payload_crc

    def fields(self) -> dict[str, int]:
        """The value of each field by name, in the order of the constructor's arguments."""
        return {name: getattr(self, name) for name in _FIELDS}

    def replace(self, **changes: int) -> Header:
        """A copy with other values for some fields."""
        return Header(**{**self.fields(), **changes})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Header) and self.fields() == other.fields()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in self.fields().items())
        return f"Header({fields})"


def pack_preface(lane: int, flags: int = 0) -> bytes:
    return _PREFACE.pack(PREFACE_MAGIC, PROTOCOL_MAJOR, PROTOCOL_MINOR, flags, lane, bytes(6))


def unpack_preface(data: Buffer) -> Preface:
    """Check and unpack the 16 bytes of `data`.

    Raises BadFrameError if they are no preface, ProtocolVersionError for another major version.
    """
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
    body = _HEADER.pack(
        FRAME_MAGIC, PROTOCOL_MAJOR, header.kind, header.dtype, header.op, header.collective, 0,
        header.flags, header.rank, header.root, header.epoch, header.chunk, header.key,
        header.round, header.count, header.done, header.stable, header.length, header.route,
        header.payload_crc,
    )  # fmt: skip
    return body + _CRC.pack(crc(body))


def unpack_header(data: Buffer, crc: Crc) -> Header:
    """Check and unpack the 80 bytes of `data`.

    Raises BadFrameError (magic, reserved byte, kind, length), ProtocolVersionError or
    CorruptedError (header CRC).
    """
    # fmt: off
    (magic, version, kind, dtype, op, collective, reserved, flags, rank, root, epoch, chunk, key,
     round_, count, done, stable, length, route, payload_crc,
     _) = _HEADER_AND_CRC.unpack(data)
    # fmt: on
    if magic != FRAME_MAGIC:
        raise BadFrameError(f"a frame begins with {magic!r}, expected {FRAME_MAGIC!r}")
    if version != PROTOCOL_MAJOR:
        raise ProtocolVersionError(f"a frame has version {version}, expected {PROTOCOL_MAJOR}")
    if crc(data) != _CRC_WITH_CRC:
        raise CorruptedError("the CRC-32C of a frame header does not match: bytes were changed")
    _check_kind(kind, reserved, length)
    return Header(
        kind, dtype, op, collective, flags, rank, root, epoch, chunk, key, round_, count, done,
        stable, length, route, payload_crc,
    )  # fmt: skip


def _check_kind(kind: int, reserved: int, length: int) -> None:
    if reserved:
        raise BadFrameError("a reserved byte of a frame header is set")
    if kind in CHUNK_KINDS:
        limit = MAX_CHUNK_BYTES + (SCALARS_BYTES if kind == LOG else 0)
    elif kind not in _KINDS:
        raise BadFrameError(f"unknown frame kind {kind}")
    elif kind in _EMPTY_KINDS:
        limit = 0
    else:
        limit = MAX_CONTROL_BYTES
    if length > limit:
        raise BadFrameError(
            f"a {MessageKind(kind).name} frame has {length} bytes, the limit is {limit}"
        )
