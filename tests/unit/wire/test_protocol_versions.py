"""Peers of another minor version are understood; peers of another major are named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    DType,
    ErrorCode,
    MessageKind,
    ReduceOp,
)
from reducer.wire.decoder import Decoder, Frame
from reducer.wire.errors import ProtocolVersionError
from reducer.wire.handshake import LaneHandshake, extract
from reducer.wire.header import (
    HEADER_SIZE,
    PREFACE_SIZE,
    Header,
    pack_header,
    pack_preface,
    unpack_preface,
)
from reducer_client.engine import EngineError
from tests.support.checksum import crc32c
from tests.support.frames import control, frame
from tests.support.one_worker import Worker
from tests.support.simlane import SimLane
from tests.vectors import regenerate

OURS = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
NEXT = PROTOCOL_MINOR + 1
KEPT = sorted(regenerate.FOLDER.glob(f"{PROTOCOL_MAJOR}.*/frames.txt"))
MAPS = {int(kind): message for message, kind in messages.KIND_OF.items()}


def decode(data: bytes) -> list[Frame]:
    return Decoder(crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE))).feed(
        data
    )


def vectors(path: Path, wanted: str) -> Iterator[tuple[str, dict[str, str]]]:
    for line in path.read_text().splitlines():
        kind, name, *fields = line.split()
        if kind == wanted:
            yield name, dict(field.split("=", 1) for field in fields)


def test_the_frames_of_this_minor_and_of_the_one_before_are_kept() -> None:
    kept = {path.parent.name for path in KEPT}
    assert {f"{PROTOCOL_MAJOR}.{minor}" for minor in range(PROTOCOL_MINOR + 1)} == kept


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_kept_frames_say_today_what_they_said(path: Path) -> None:
    found = 0
    for name, fields in vectors(path, "frame"):
        data = bytes.fromhex(fields.pop("hex"))
        (whole,) = decode(data)
        assert {field: str(int(v)) for field, v in whole.header.fields().items()} == fields, name
        assert data.startswith(pack_header(whole.header, crc32c)), name
        message = MAPS.get(whole.header.kind)
        if message is not None and whole.payload is not None:
            said = messages.decode(message, whole.payload)
            values = msgpack.unpackb(whole.payload)
            again = msgpack.unpackb(messages.encode(said))
            assert {field: again[field] for field in values} == values, name
        found += 1
    assert found >= len(MAPS)
    for name, fields in vectors(path, "psk"):
        said = {field: bytes.fromhex(text) for field, text in fields.items() if field != "lane"}
        opening, lane = said["opening"], int(fields["lane"])
        proven = LaneHandshake(
            extract(said["master"]), opening[:PREFACE_SIZE], lane, regenerate.INCARNATION,
            said["lane_nonce"],
        )  # fmt: skip
        assert regenerate.say(proven, opening[PREFACE_SIZE:]) == said["answer"], name
        assert regenerate.say(proven, said["proof"]) == b"" and proven.done, name
    for _, fields in vectors(path, "preface"):
        preface = unpack_preface(bytes.fromhex(fields["hex"]))
        assert (preface.major, str(preface.lane)) == (PROTOCOL_MAJOR, fields["lane"])
        assert preface.minor == int(path.parent.name.split(".")[1])


def with_names(message: messages.Message, **names: Any) -> bytes:
    """The frame of a peer whose map has further names, or other values."""
    values = {**msgpack.unpackb(messages.encode(message)), **names}
    header = Header(kind=messages.KIND_OF[type(message)])
    return frame(header, msgpack.packb(values))


@pytest.mark.parametrize("minor", range(NEXT + 1))
def test_a_worker_of_another_minor_is_welcomed_with_ours(minor: int) -> None:
    preface = bytearray(pack_preface(0))
    preface[5] = minor
    assert unpack_preface(bytes(preface)).minor == minor
    session = SimLane().connect()
    hello = messages.Hello("job", 0, 1, bytes(16), 0, 1, "run", ((0, 4_096),))
    session.send(with_names(hello, minor=minor, of_a_later_minor=[{"a": 1}]))
    (answer,) = session.read()
    assert answer.header.kind == MessageKind.WELCOME and answer.payload is not None
    assert msgpack.unpackb(answer.payload)["minor"] == PROTOCOL_MINOR


@pytest.mark.parametrize("minor", range(NEXT + 1))
def test_a_lane_of_another_minor_is_joined(minor: int) -> None:
    worker = Worker(world_size=1)
    (hello,) = worker.sent()
    assert hello.payload is not None
    assert msgpack.unpackb(hello.payload)["minor"] == PROTOCOL_MINOR
    later = {"minor": minor, "of_a_later_minor": [{"a": 1}]}
    worker.get(with_names(messages.Pending(1, 0, bytes(16)), **later))
    welcome = messages.Welcome(
        "run", 0, 1, 1, 0, bytes(16), 1, 0, 0, ((0, 4_096),), 8_192, 8_192, 250
    )
    worker.get(with_names(welcome, **later))
    assert worker.state.error is None and worker.state.joined


@pytest.mark.parametrize("minor", range(NEXT + 1))
def test_bitwise_operations_need_a_lane_of_minor_1(minor: int) -> None:
    """An older lane is named before a byte is sent to it, and the group still works."""
    worker = Worker(world_size=1)
    worker.get(with_names(messages.Pending(1, 0, bytes(16)), minor=minor))
    welcome = messages.Welcome(
        "run", 0, 1, 1, 0, bytes(16), 1, 0, 0, ((0, 4_096),), 8_192, 8_192, 250
    )
    worker.get(with_names(welcome, minor=minor))
    worker.sent()
    values = np.arange(3, dtype=np.int32)
    if minor == 0:
        with pytest.raises(EngineError) as caught:
            worker.submit("bits", values, values, op=ReduceOp.BAND, dtype=DType.INT32)
        code, text = caught.value.args[:2]
        assert code == ErrorCode.VERSION
        assert "speaks protocol 1.0; band, bor and bxor need 1.1" in text
        assert not worker.sent()
    else:
        worker.submit("bits", values, values, op=ReduceOp.BAND, dtype=DType.INT32)
        assert MessageKind.CONTRIBUTION in worker.kinds()
    worker.submit("sum", values, values, dtype=DType.INT32)
    assert MessageKind.CONTRIBUTION in worker.kinds()


@pytest.mark.parametrize("major", [PROTOCOL_MAJOR - 1, PROTOCOL_MAJOR + 1])
def test_the_preface_of_another_major_is_refused_with_both_versions(major: int) -> None:
    preface = bytearray(pack_preface(0))
    preface[4:6] = major, 3
    with pytest.raises(ProtocolVersionError, match=rf"{major}\.3.*{re.escape(OURS)}"):
        unpack_preface(bytes(preface))


@pytest.mark.parametrize("major", [PROTOCOL_MAJOR - 1, PROTOCOL_MAJOR + 1])
def test_a_lane_of_another_major_is_named_with_both_versions(major: int) -> None:
    """Such a lane answers with its own preface."""
    worker = Worker(world_size=1)
    worker.get(b"ORSP" + bytes([major, 3]) + bytes(PREFACE_SIZE - 6))
    assert worker.state.error is not None
    code, text = worker.state.error[:2]
    assert code == ErrorCode.VERSION
    assert f"{major}.3" in text and OURS in text


@pytest.mark.parametrize("side", ["worker", "lane"])
def test_a_frame_of_another_major_is_refused_as_such(side: str) -> None:
    data = bytearray(control(messages.Goaway("SIGTERM", 0)))
    data[4] = PROTOCOL_MAJOR + 1
    data[76:80] = crc32c(bytes(data[:76])).to_bytes(4, "little")
    if side == "lane":
        with pytest.raises(ProtocolVersionError, match=f"version {PROTOCOL_MAJOR + 1}"):
            decode(bytes(data))
    else:
        worker = Worker(world_size=1)
        worker.get(bytes(data))
        assert worker.state.error is not None and worker.state.error[0] == ErrorCode.VERSION
