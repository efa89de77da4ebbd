"""Builds the control frames of a lane. `runs/results.py` builds its RESULT frames."""

from __future__ import annotations

from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.header import Buffer, Crc, Header, pack_header


def control_frame(message: messages.Message, crc: Crc, **fields: int) -> bytes:
    """A frame whose payload is a map."""
    kind = messages.KIND_OF[type(message)]
    return payload_frame(kind, messages.encode(message), crc, **fields)


def payload_frame(kind: MessageKind, payload: Buffer, crc: Crc, **fields: int) -> bytes:
    header = Header(
        kind=kind,
        length=len(payload),
        payload_crc=crc(payload) if payload else 0,
        **fields,
    )
    return pack_header(header, crc) + payload
