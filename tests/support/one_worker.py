"""One engine state and the lanes' ends of its connections, driven by frames of a test."""

from __future__ import annotations

from typing import Any

import engine_parts
import numpy as np

from reducer.wire import messages
from reducer.wire.codes import Collective, DType, MessageKind, ReduceOp
from reducer.wire.decoder import Decoder, Frame
from reducer.wire.header import HEADER_SIZE, Header
from tests.support.checksum import crc32c
from tests.support.frames import control, frame, heartbeat

CHUNK = 4_096
TABLE = ((0, CHUNK),)
ROOMY = 64 * CHUNK
FLOATS = CHUNK // 4
KEY = engine_parts.key_id("key")
Live = tuple[int, ...]


class Worker:
    """One engine state and the lanes' ends of its connections."""

    def __init__(
        self, *, rank: int = 0, world_size: int = 2, reducers: int = 1, **options: Any
    ) -> None:
        self.now = 0.0
        self.state = engine_parts.State(
            reducers=reducers,
            job="job",
            run_id="run" if rank == 0 else "",
            rank=rank,
            world_size=world_size,
            chunk_table=list(TABLE),
            connect_timeout=10.0,
            **options,
        )
        self.world_size = world_size
        self.reducers = reducers
        self.decoders: dict[tuple[int, int], Decoder] = {}
        self.connect()

    def connect(self) -> list[tuple[int, int]]:
        new = self.state.wanted()
        for reducer, lane in new:
            self.decoders[reducer, lane] = Decoder(
                crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE))
            )
            self.state.opened(reducer, lane, self.now)
        return new

    def sent(self, reducer: int = 0, lane: int = 0) -> list[Frame]:
        data = self.state.outgoing(reducer, lane, 1 << 24, self.now)
        return self.decoders[reducer, lane].feed(data)

    def kinds(self, reducer: int = 0, lane: int = 0) -> list[MessageKind]:
        return [MessageKind(f.header.kind) for f in self.sent(reducer, lane)]

    def get(self, data: bytes, reducer: int = 0, lane: int = 0) -> None:
        self.state.incoming(reducer, lane, data, self.now)

    def pending(self, *absent: int, reducer: int = 0, lane: int = 0, lanes: int = 1) -> None:
        message = messages.Pending(lanes, lane, bytes([reducer]) * 16, absent, len(absent))
        self.get(control(message), reducer, lane)

    def welcome(self, reducer: int = 0, lane: int = 0, lanes: int = 1, **other: Any) -> None:
        fields: dict[str, Any] = {
            "run_id": "run",
            "slot": reducer,
            "reducers": self.reducers,
            "lanes": lanes,
            "lane": lane,
            "incarnation": bytes([reducer]) * 16,
            "world_size": self.world_size,
            "epoch": 0,
            "route": 0,
            "chunk_table": TABLE,
            "credit": 2 * CHUNK,
            "grant": 2 * CHUNK,
            "heartbeat_ms": 250,
        }
        self.get(control(messages.Welcome(**{**fields, **other})), reducer, lane)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.state.tick(self.now)

    def submit(
        self, key: str, values: np.ndarray, target: np.ndarray, priority: int = 0,
        op: ReduceOp = ReduceOp.SUM, dtype: DType = DType.FLOAT32,
    ) -> Any:  # fmt: skip
        return self.state.submit(
            Collective.ALL_REDUCE, op, dtype, False, key, 0, values.size, values, target, False,
            priority,
        )  # fmt: skip

    def contributions(self, reducer: int = 0, lane: int = 0) -> list[Header]:
        frames = self.sent(reducer, lane)
        return [f.header for f in frames if f.header.kind == MessageKind.CONTRIBUTION]

    def disconnect(self, reducer: int = 0, lane: int = 0, *, why: str = "connection reset") -> None:
        """End the connection without a message; the state has not reacted yet."""
        self.state.closed(reducer, lane, why, self.now)

    def refuse(self, reducer: int = 0, lane: int = 0, *, why: str = "connection refused") -> None:
        """The attempt to open the wanted connection fails."""
        assert (reducer, lane) in self.state.wanted()
        self.state.unreachable(reducer, lane, why, self.now)

    def back(self, reducer: int = 0, lane: int = 0, **welcome: Any) -> list[Frame]:
        """Reconnect the lane and welcome the worker; returns the worker's frames after HELLO."""
        assert (reducer, lane) in self.connect()
        (hello,) = self.sent(reducer, lane)
        assert hello.header.kind == MessageKind.HELLO
        self.welcome(reducer, lane, **welcome)
        return self.sent(reducer, lane)

    def pass_time(self, seconds: float, *speaking: int) -> None:
        """Ticks, with a heartbeat of lane 0 of each reducer that speaks."""
        for _ in range(round(seconds / 0.05)):
            self.tick(0.05)
            for reducer in speaking:
                self.get(heartbeat(), reducer)


def joined(credit: int = 2 * CHUNK, lanes: int = 1, **options: Any) -> Worker:
    """A worker that all lanes have welcomed; its first frames are already read."""
    worker = Worker(**options)
    for reducer in range(worker.reducers):
        for lane in range(lanes):
            worker.welcome(reducer, lane, lanes, credit=credit)
            worker.connect()
    assert worker.state.joined
    for reducer in range(worker.reducers):
        for lane in range(lanes):
            worker.sent(reducer, lane)
    return worker


def result(sent: Header, payload: bytes, **changes: Any) -> bytes:
    header = sent.replace(kind=MessageKind.RESULT, rank=0xFFFF, done=0).replace(**changes)
    return frame(header, payload)


def route(number: int, since: tuple[int, ...], live: Live, lanes: Live | None = None) -> bytes:
    return control(messages.Route(number, since, live, lanes or (1,) * len(since)))


def said(frames: list[Frame], kind: MessageKind) -> list[Frame]:
    return [f for f in frames if f.header.kind == kind]


def decoded(frames: list[Frame], kind: type[Any]) -> list[Any]:
    found = said(frames, messages.KIND_OF[kind])
    return [messages.decode(kind, f.payload or b"") for f in found]


def chunks(frames: list[Frame]) -> list[tuple[int, int, int]]:
    """(round, chunk, route) of the contributions."""
    found = said(frames, MessageKind.CONTRIBUTION)
    return [(f.header.round, f.header.chunk, f.header.route) for f in found]


def submit(worker: Worker, count: int, key: str = "key") -> tuple[Any, np.ndarray]:
    """A round of `count` whole chunks, and its target."""
    values = np.arange(count * FLOATS, dtype=np.float32)
    target = np.full_like(values, -1)
    return worker.submit(key, values, target), target


def home(chunk: int, slots: int) -> int:
    return (KEY % 2**32 + chunk) % slots


def positions(frames: list[Frame]) -> dict[tuple[int, int], int]:
    """By (home slot, route): the done position of the one key in the heartbeats."""
    found = {}
    for beat in said(frames, MessageKind.HEARTBEAT):
        payload = bytes(beat.payload or b"")
        if payload:
            assert int.from_bytes(payload[:8], "little") == KEY
            done = int.from_bytes(payload[8:16], "little")
            found[beat.header.chunk, beat.header.route] = done
    return found
