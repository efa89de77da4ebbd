"""Header, preface and decoder: golden vectors, every cut, and bytes that are refused."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.wire.codes import MAX_EARLY_BYTES, PROTOCOL_MINOR, MessageKind
from reducer.wire.decoder import FIRST_SCRATCH_BYTES, SCRATCH_BYTES, SKIP, Decoder, Frame
from reducer.wire.errors import (
    BadFrameError,
    CorruptedError,
    ProtocolError,
    ProtocolVersionError,
)
from reducer.wire.header import (
    HEADER_SIZE,
    Header,
    PrefaceFlag,
    pack_header,
    pack_preface,
    unpack_header,
    unpack_preface,
)
from tests.support.checksum import crc32c
from tests.support.frames import frame, heartbeat
from tests.vectors import regenerate

FAMILIES = {
    "bad_frame": BadFrameError,
    "version": ProtocolVersionError,
    "corrupted": CorruptedError,
}


def decoder() -> Decoder:
    return Decoder(crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE)))


def contents(frames: list[Frame]) -> list[tuple[Header, bytes]]:
    return [(f.header, bytes(f.payload or b"")) for f in frames]


def test_the_vectors_in_the_tree_are_what_the_codec_writes() -> None:
    assert regenerate.PATH.read_text() == regenerate.text()


def test_crc32c_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("name", regenerate.frames())
def test_a_vector_decodes_whole_bytewise_and_with_trailing_bytes(name: str) -> None:
    data = regenerate.frames()[name]
    (whole,) = contents(decoder().feed(data))
    one_by_one = decoder()
    bytewise: list[Frame] = []
    for byte in data:
        bytewise += one_by_one.feed(bytes([byte]))
    trailing = decoder()
    first = trailing.feed(data + data[:50])
    assert contents(bytewise) == contents(first) == [whole]
    assert contents(trailing.feed(data[50:])) == contents(one_by_one.feed(data)) == [whole]
    assert pack_header(whole[0], crc32c) + whole[1] == data


@pytest.mark.parametrize("name", regenerate.bad_frames())
@pytest.mark.parametrize("bytewise", [False, True])
def test_a_bad_vector_is_refused_by_its_family(name: str, bytewise: bool) -> None:
    family, data = regenerate.bad_frames()[name]
    target = decoder()
    with pytest.raises(FAMILIES[family]):
        for piece in [data[i : i + 1] for i in range(len(data))] if bytewise else [data]:
            target.feed(piece)


def test_nothing_is_allocated_for_a_refused_length() -> None:
    asked: list[Header] = []

    def target(header: Header) -> memoryview:
        asked.append(header)
        return memoryview(bytearray(header.length + HEADER_SIZE))

    for length in ((4 << 20) + 1, 1 << 31, (1 << 32) - 1):
        header = pack_header(Header(kind=MessageKind.CONTRIBUTION, length=length), crc32c)
        with pytest.raises(BadFrameError, match="limit"):
            Decoder(crc32c, target).feed(header)
    assert not asked


def test_who_has_sent_no_chunk_holds_little_memory() -> None:
    asked: list[int] = []

    def target(header: Header) -> memoryview:
        asked.append(header.kind)
        return memoryview(bytearray(header.length + HEADER_SIZE))

    reader = Decoder(crc32c, target)
    reader.feed(heartbeat() * 100)
    assert len(reader.get_buffer()) == FIRST_SCRATCH_BYTES
    reader.feed(heartbeat(*[(1, 1)] * (MAX_EARLY_BYTES // 16)))
    assert not asked
    reader.feed(heartbeat(*[(1, 1)] * (MAX_EARLY_BYTES // 16 + 1)))
    assert asked == [MessageKind.HEARTBEAT]
    assert len(reader.get_buffer()) == FIRST_SCRATCH_BYTES
    reader.feed(frame(Header(MessageKind.CONTRIBUTION), bytes(8)))
    assert len(reader.get_buffer()) == SCRATCH_BYTES


def skipping() -> Decoder:
    """A decoder whose owner skips odd chunks."""

    def target(header: Header) -> memoryview:
        return SKIP if header.chunk % 2 else memoryview(bytearray(header.length + HEADER_SIZE))

    return Decoder(crc32c, target)


@given(
    st.lists(st.integers(0, 5 * SCRATCH_BYTES), min_size=1, max_size=8),
    st.integers(0, 2**32),
    st.sampled_from([decoder, skipping]),
)
def test_any_cut_of_a_stream_gives_the_same_frames(
    sizes: list[int], seed: int, new: Callable[[], Decoder]
) -> None:
    rng = random.Random(seed)
    stream = b""
    for number, size in enumerate(sizes):
        header = Header(kind=MessageKind.CONTRIBUTION, dtype=6, chunk=number)
        stream += frame(header, rng.randbytes(size)) + heartbeat((number, size))
    expected = [
        (header, b"" if new is skipping and header.chunk % 2 else payload)
        for header, payload in contents(decoder().feed(stream))
    ]
    cut = new()
    got: list[Frame] = []
    at = 0
    while at < len(stream):
        step = rng.choice((1, 7, HEADER_SIZE, 4_096, 100_000))
        got += cut.feed(stream[at : at + step])
        at += step
    assert contents(got) == expected
    assert len(got) == 2 * len(sizes)


@given(st.binary(max_size=400), st.booleans())
def test_arbitrary_bytes_are_parsed_or_refused(data: bytes, sealed: bool) -> None:
    if sealed and len(data) >= HEADER_SIZE:
        body = b"ORSF\x01" + data[5:76]
        data = body + crc32c(body).to_bytes(4, "little") + data[80:]
    with contextlib.suppress(ProtocolError):
        decoder().feed(data)


def test_flipping_any_bit_of_a_frame_is_noticed() -> None:
    data = frame(Header(kind=MessageKind.CONTRIBUTION, dtype=1, rank=2), bytes(range(40)))
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            decoder().feed(bytes(flipped))


def test_preface_round_trip_and_refusals() -> None:
    assert unpack_preface(pack_preface(7)).lane == 7
    with pytest.raises(BadFrameError, match="GET / HT"):
        unpack_preface(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ProtocolVersionError, match=rf"speaks protocol 9\.0.*1\.{PROTOCOL_MINOR}"):
        unpack_preface(b"ORSP\x09" + bytes(11))
    with pytest.raises(BadFrameError, match="reserved"):
        unpack_preface(pack_preface(0)[:-1] + b"\x01")
    for flags in (PrefaceFlag.PSK | PrefaceFlag.TLS, 4):  # two modes, an unknown flag
        with pytest.raises(BadFrameError):
            unpack_preface(pack_preface(0, flags))


def test_a_header_survives_its_extremes() -> None:
    header = Header(
        MessageKind.CONTRIBUTION, 10, 6, 5, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF,
        2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1, 4 << 20, 0xFFFFFFFF, 0xFFFFFFFF,
    )  # fmt: skip
    assert unpack_header(pack_header(header, crc32c), crc32c) == header
