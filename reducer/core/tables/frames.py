"""The frames that a lane sends about tables."""

from __future__ import annotations

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.control_frames import control_frame
from reducer.core.surface.events import Output, Send, SendValue
from reducer.wire.codes import DType, MessageKind
from reducer.wire.header import NO_RANK, Crc, Header, pack_header
from reducer.wire.table_messages import Notice

_FLOAT32 = int(DType.FLOAT32)
_RECEIPT = int(MessageKind.RECEIPT)
_VALUE = int(MessageKind.VALUE)


def notice(message: Notice, sessions: tuple[int, ...], crc: Crc, number: int = 0) -> Send:
    return Send(0, sessions, control_frame(message, crc, key=number), None, 0)


def receipt(
    session: int,
    crc: Crc,
    key: int,
    shard: int,
    seq: int,
    outcome: int,
    version: int,
    staleness: int,
) -> Output:
    header = Header(
        _RECEIPT, flags=outcome, rank=NO_RANK, chunk=shard, key=key, round=seq, count=version,
        done=staleness,
    )  # fmt: skip
    return Send(0, (session,), pack_header(header, crc), None, 0)


def value(
    session: int,
    key: int,
    shard: int,
    number: int,
    array: int,
    version: int,
    clock: int,
    buffer: Buffer,
    size: int,
) -> Output:
    header = Header(
        _VALUE, dtype=_FLOAT32, root=array, chunk=shard, key=key, round=number, count=version,
        done=clock, length=size,
    )  # fmt: skip
    return SendValue(session, header, buffer)
