"""Builders of frames for tests, on the real codec."""

from __future__ import annotations

import struct

from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.decoder import Frame
from reducer.wire.header import Header, pack_header
from tests.support.checksum import crc32c


def frame(header: Header, payload: bytes = b"") -> bytes:
    """A header and payload with the right length and CRCs."""
    header = header.replace(length=len(payload), payload_crc=crc32c(payload))
    return pack_header(header, crc32c) + payload


def control(message: messages.Message, **fields: int) -> bytes:
    kind = messages.KIND_OF[type(message)]
    return frame(Header(kind=kind, **fields), messages.encode(message))


def heartbeat(*entries: tuple[int, int], **fields: int) -> bytes:
    payload = b"".join(struct.pack("<QQ", key, position) for key, position in entries)
    return frame(Header(kind=MessageKind.HEARTBEAT, **fields), payload)


def error_of(frames: list[Frame]) -> messages.Error:
    """The only ERROR among these frames."""
    (found,) = [each for each in frames if each.header.kind == MessageKind.ERROR]
    return messages.decode(messages.Error, found.payload or b"")
