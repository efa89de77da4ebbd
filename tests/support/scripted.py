"""A worker that a test plays by hand against a SimLane: joins, contributes, reads results."""

from __future__ import annotations

from dataclasses import dataclass

from reducer.core.rounds.chunk_plan import ChunkPlan, make_plan
from reducer.wire import messages
from reducer.wire.codes import Collective, DType, ErrorCode, MessageKind, ReduceOp
from reducer.wire.decoder import Frame
from reducer.wire.header import Header
from reducer.wire.keys import key_id
from tests.support.frames import control, frame, heartbeat
from tests.support.simlane import SimLane, SimSession

TABLE: messages.ChunkTable = ((0, 4_096),)


@dataclass(frozen=True)
class Spec:
    """One round as a rank describes it."""

    key: str = "x"
    number: int = 0
    dtype: DType = DType.FLOAT32
    op: ReduceOp = ReduceOp.SUM
    collective: Collective = Collective.ALL_REDUCE
    count: int = 8
    root: int = 0


class Scripted:
    """One rank on one lane. `frames`: received frames that the test has not taken yet."""

    def __init__(
        self, lane: SimLane, rank: int, world_size: int, *, table: messages.ChunkTable = TABLE,
        **hello: object,
    ) -> None:  # fmt: skip
        self.lane = lane
        self.rank = rank
        self.world_size = world_size
        self.table = table
        self.session: SimSession = lane.connect()
        self.frames: list[Frame] = []
        fields: dict[str, object] = {
            "job": "job", "rank": rank, "world_size": world_size,
            "incarnation": bytes([rank % 256]) * 16, "slot": 0, "reducers": 1,
            "run_id": "run" if rank == 0 else "", "chunk_table": table if rank == 0 else (),
        }  # fmt: skip
        self.hello = messages.Hello(**{**fields, **hello})  # type: ignore[arg-type]
        self.session.send(control(self.hello))

    def plan(self, spec: Spec) -> ChunkPlan:
        return make_plan(spec.collective, spec.dtype, spec.count, self.world_size, self.table)

    def header(self, spec: Spec, chunk: int = 0, **fields: int) -> Header:
        header = Header(
            kind=MessageKind.CONTRIBUTION, dtype=spec.dtype, op=spec.op,
            collective=spec.collective, flags=0, rank=self.rank, root=spec.root, chunk=chunk,
            key=key_id(spec.key), round=spec.number, count=spec.count,
        )  # fmt: skip
        return header.replace(**fields)

    def contribute(self, spec: Spec, chunk: int = 0, data: bytes = b"", **fields: int) -> None:
        self.session.send(frame(self.header(spec, chunk, **fields), data))

    def contribute_all(self, spec: Spec, data: bytes) -> None:
        """Contribute every chunk of a round of one part, in ascending order."""
        plan = self.plan(spec)
        step = plan.sent.bytes(plan.chunk_elements)
        for chunk in range(plan.chunks):
            size = plan.sends(chunk, self.rank, spec.root)
            self.contribute(spec, chunk, data[chunk * step : chunk * step + size])

    def announce(self, name: str, id_: int | None = None) -> None:
        self.session.send(control(messages.Key(name), key=key_id(name) if id_ is None else id_))

    def abandon(self, spec: Spec, why: str = "the ranks disagree") -> None:
        cause = messages.Abandon(int(ErrorCode.MISMATCH), why)
        self.session.send(control(cause, key=key_id(spec.key), round=spec.number))

    def report(self, key: str, position: int) -> None:
        self.session.send(heartbeat((key_id(key), position)))

    def bye(self) -> None:
        self.session.send(frame(Header(kind=MessageKind.BYE)))

    def read(self, kind: MessageKind) -> list[Frame]:
        """The frames of one kind that have come since the last `read` of this kind."""
        self.frames += self.session.read()
        found = [f for f in self.frames if f.header.kind == kind]
        self.frames = [f for f in self.frames if f.header.kind != kind]
        return found

    def error(self) -> messages.Error:
        """The ERROR that ended the session."""
        (found,) = self.read(MessageKind.ERROR)
        assert found.payload is not None
        return messages.decode(messages.Error, found.payload)

    def results(self) -> list[bytes]:
        return [bytes(f.payload or b"") for f in self.read(MessageKind.RESULT)]


def join_all(lane: SimLane, world_size: int, **kwargs: object) -> list[Scripted]:
    """The ranks of a formed run."""
    return [Scripted(lane, rank, world_size, **kwargs) for rank in range(world_size)]  # type: ignore[arg-type]


def runs_of_one(lane: SimLane, count: int) -> list[Scripted]:
    """The ranks of `count` runs of one rank each, whose streams have moved."""
    workers = [join_all(lane, 1, run_id=f"run-{n}")[0] for n in range(count)]
    for worker in workers:
        worker.session.send(control(messages.Route(1, (1,), (1,), (1,))))
    return workers


def fill(worker: Scripted, keys: int, route: int = 1) -> None:
    """Make keys with a done position of the rank, on a stream that has moved."""
    for first in range(0, keys, 1_000):
        entries = ((key, 1) for key in range(first, min(keys, first + 1_000)))
        worker.session.send(heartbeat(*entries, route=route))
