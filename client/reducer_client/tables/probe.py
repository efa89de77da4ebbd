"""Asks a lane for its number and incarnation, on a connection for this question alone."""

from __future__ import annotations

import time

from reducer.wire import messages
from reducer.wire.codes import MAX_PARTITIONS, MessageKind
from reducer.wire.decoder import Decoder, Frame
from reducer.wire.header import HEADER_SIZE, Header, pack_header
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.registry.dial import Dialer
from reducer_client.tables.connection import crc32c

# No table has this partition, so a reader of this partition disturbs nobody.
PARTITION = MAX_PARTITIONS - 1


def question(job: str, run_id: str) -> TableCall:
    """The call `open` of a probe."""
    return TableCall("open", job=job, run_id=run_id, worker=-1, partition=PARTITION)


def ask_lane(dialer: Dialer, call: TableCall, seconds: float) -> Notice | None:
    """The lane's answer to `open`; None if it refuses.

    Raises OSError, ReducerError or a wire error if there is no lane, or no answer in time.
    """
    until = time.monotonic() + seconds
    with dialer.dial(seconds) as sock:
        payload = messages.encode(call)
        head = Header(
            kind=MessageKind.TABLE, key=1, length=len(payload), payload_crc=crc32c(payload)
        )
        bye = pack_header(Header(kind=MessageKind.BYE), crc32c)
        sock.sendall(pack_header(head, crc32c) + payload + bye)
        decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE)))
        while True:
            sock.settimeout(max(0.001, until - time.monotonic()))
            data = sock.recv(1 << 14)
            if not data:
                raise ConnectionError("the reducer closed the connection")
            for frame in decoder.feed(data):
                if frame.header.kind in (MessageKind.NOTICE, MessageKind.ERROR):
                    return _answer(frame)


def _answer(frame: Frame) -> Notice | None:
    if frame.header.kind == MessageKind.ERROR:
        return None
    notice = messages.decode(Notice, frame.payload or b"")
    return None if notice.code else notice
