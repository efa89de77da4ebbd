"""The codec: headers, and the decoder fed as the event loop feeds it."""

from __future__ import annotations

import pytest

from bench.micro.measure import Measure
from reducer.kernels import load
from reducer.wire.codes import Collective, DType, MessageKind, ReduceOp
from reducer.wire.decoder import Decoder
from reducer.wire.header import HEADER_SIZE, Header, pack_header, unpack_header

CRC = load("native").crc32c
CHUNKS = 64


def contribution(chunk: int, payload: bytes) -> Header:
    return Header(
        MessageKind.CONTRIBUTION,
        DType.FLOAT32,
        ReduceOp.SUM,
        Collective.ALL_REDUCE,
        rank=3,
        chunk=chunk,
        key=0x1234_5678_9ABC_DEF0,
        round=7,
        count=1 << 24,
        length=len(payload),
        payload_crc=CRC(payload),
    )


def test_pack_header(measure: Measure) -> None:
    header = contribution(5, b"")
    packed = measure(lambda: pack_header(header, CRC))
    assert len(packed) == HEADER_SIZE


def test_unpack_header(measure: Measure) -> None:
    header = contribution(5, b"")
    packed = pack_header(header, CRC)
    assert measure(lambda: unpack_header(packed, CRC)) == header


@pytest.mark.parametrize("kib", [4, 64, 1024])
def test_decoder(measure: Measure, kib: int) -> None:
    """A stream of chunks that always has data; includes the copy that the kernel would make."""
    payload = bytes(range(256)) * (kib << 2)
    frames = [pack_header(contribution(c, payload), CRC) + payload for c in range(CHUNKS)]
    target = memoryview(bytearray(len(payload) + HEADER_SIZE))
    decoder = Decoder(CRC, lambda header: target)
    stream = memoryview(b"".join(frames))

    def decode() -> int:
        rest, found = stream, 0
        while rest:
            room = decoder.get_buffer()
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            rest = rest[size:]
            decoder.received(size)
            while decoder.next_frame() is not None:
                found += 1
        return found

    assert measure(decode, events=CHUNKS, size=len(payload)) == CHUNKS
