"""A worker that a test plays by hand against the tables of a SimLane, or of a real lane."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import msgpack
import numpy as np
import numpy.typing as npt

from reducer.optimizers import SGD, Optimizer, to_fields
from reducer.wire import messages
from reducer.wire.codes import DType, Flag, MessageKind
from reducer.wire.decoder import Frame
from reducer.wire.header import NO_RANK, Header
from reducer.wire.keys import key_id
from reducer.wire.table_messages import Notice, TableCall
from tests.support.frames import control, frame, heartbeat

Array = npt.NDArray[np.float32]
SHARD = 16
UNIT_SGD = SGD(1.0, convention="torch")


def describe(of: Optimizer = UNIT_SGD, **fields: Any) -> TableCall:
    """The call `table` for a table "net" of 40 elements: shards of 16, 16 and 8 on one lane."""
    packed = msgpack.packb(to_fields(of))
    known: dict[str, Any] = {"count": 40, "shard": SHARD, "partitions": 1, "optimizer": packed}
    return TableCall("table", name="net", **{**known, **fields})


class Session(Protocol):
    """A connection to a lane. `closed`: why the lane has closed it."""

    closed: str | None

    def send(self, data: bytes) -> None: ...

    def read(self) -> list[Frame]: ...

    def disconnect(self, reason: str = ...) -> None: ...


class Connects(Protocol):
    """SimLane, or a lane of a daemon (`tests.support.wire_lane`)."""

    def connect(self) -> Session: ...


class TableWorker:
    """One worker on one lane. `frames`: what it was sent and the test has not taken."""

    def __init__(
        self, lane: Connects, worker: int, start: int = 0, *, job: str = "job", **fields: Any
    ) -> None:
        self.lane = lane
        self.worker = worker
        self.incarnation = bytes([worker % 256, start]) * 8
        self.session: Session = lane.connect()
        self.frames: list[Frame] = []
        self.description = describe()
        self.send(
            control(
                TableCall(
                    "open", job=job, worker=worker, incarnation=self.incarnation, **fields
                ),
                key=1,
            )
        )  # fmt: skip

    def send(self, data: bytes) -> None:
        self.session.send(data)

    def call(self, call: TableCall, number: int = 2) -> None:
        self.send(control(call, key=number))

    def read(self) -> list[Frame]:
        self.frames += self.session.read()
        return self.frames

    def take(self, kind: MessageKind) -> list[Header]:
        """The headers of the frames of this kind, which are forgotten."""
        return [each.header for each in self.take_frames(kind)]

    def take_frames(self, kind: MessageKind) -> list[Frame]:
        found = [each for each in self.read() if each.header.kind == kind]
        self.frames = [each for each in self.frames if each.header.kind != kind]
        return found

    def notices(self, call: str = "") -> list[Notice]:
        """The notices about this call; all, if none is named. All are forgotten."""
        found = [
            messages.decode(Notice, each.payload or b"")
            for each in self.take_frames(MessageKind.NOTICE)
        ]
        return [each for each in found if call in ("", each.call)]

    def error(self) -> messages.Error | None:
        """The ERROR that has ended the session."""
        for each in self.take_frames(MessageKind.ERROR):
            return messages.decode(messages.Error, each.payload or b"")
        return None

    # --- tables ---------------------------------------------------------------------------------

    def table(self, description: TableCall | None = None) -> Notice:
        self.description = description or self.description
        self.call(self.description)
        return self.notices("table")[-1]

    @property
    def key(self) -> int:
        return key_id(self.description.name)

    def shards(self) -> list[slice]:
        step = self.description.shard
        return [slice(at, at + step) for at in range(0, self.description.count, step)]

    def values(self, array: Array, root: int = 0, version: int = 0) -> None:
        """Send first values of all shards."""
        for number, place in enumerate(self.shards()):
            self.push(number, array[place], 0, version, flags=int(Flag.VALUES), root=root)

    def push(self, shard: int, values: Array, seq: int, base: int = 0, **fields: int) -> None:
        header = Header(
            MessageKind.PUSH, DType.FLOAT32, rank=self.worker & NO_RANK, chunk=shard, key=self.key,
            round=seq, count=base, **fields,
        )  # fmt: skip
        self.send(frame(header, values.astype("<f4").tobytes()))

    def push_all(self, array: Array, seq: int, base: int = 0, **fields: int) -> None:
        for number, place in enumerate(self.shards()):
            self.push(number, array[place], seq, base, **fields)

    def pull(self, shard: int, clock: int = 0, version: int = 0, **fields: int) -> None:
        header = Header(
            MessageKind.PULL, rank=self.worker & NO_RANK, chunk=shard, key=self.key, round=7,
            count=clock, done=version, **fields,
        )  # fmt: skip
        self.send(frame(header))

    def pull_all(self) -> Array:
        """The parameters; all shards must be there."""
        for number in range(len(self.shards())):
            self.pull(number)
        found = sorted(self.take_frames(MessageKind.VALUE), key=lambda each: each.header.chunk)
        parts = [np.frombuffer(each.payload or b"", "<f4") for each in found]
        return np.concatenate(parts)

    def clock(self, clock: int) -> None:
        self.call(TableCall("clock", name=self.description.name, clock=clock), 0)

    def step_call(self, call: str, step: int, generation: int = 0, **fields: Any) -> None:
        wanted = TableCall(call, name=self.description.name, step=step, generation=generation)
        self.call(replace(wanted, **fields), 0)

    def beat(self) -> None:
        self.send(heartbeat())

    def bye(self) -> None:
        self.send(frame(Header(MessageKind.BYE)))

    def lose(self) -> None:
        """The connection ends without a word."""
        self.session.disconnect("reset")
