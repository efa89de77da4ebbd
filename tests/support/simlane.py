"""A lane in this process: the real decoder, core and kernels, with memory instead of sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from reducer.core.lane import Lane
from reducer.core.surface import events
from reducer.core.surface.settings import LaneSettings
from reducer.kernels import KernelSet, load
from reducer.server.data.executor import failure_of, folded, reduced
from reducer.server.data.table_kernels import TableKernels
from reducer.server.pipe.reports import put_together
from reducer.server.pipe.snapshot import LaneNumbers, LaneReport, Snapshot, Usage
from reducer.wire.codes import CHUNK_KINDS, MAX_REDUCERS, Flag, MessageKind
from reducer.wire.decoder import SKIP, Decoder, Frame
from reducer.wire.errors import PEER_ERRORS
from reducer.wire.header import HEADER_SIZE, Header, pack_header
from reducer.wire.sizes import result_bytes

KIND_OFFSET = 5  # where a header has the kind of its frame


class InjectedError(MemoryError):
    """The error that `SimLane.inject` raises."""


class SimBuffer:
    """Memory of one contribution; `state` shows a use after the buffer was freed."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size + HEADER_SIZE)
        self.view = memoryview(self.memory)
        self.freed = False


class SimSession:
    """The lane's end of one connection, with the bytes that the lane has written to it."""

    def __init__(self, lane: SimLane, number: int) -> None:
        self.lane = lane
        self.number = number
        self.closed: str | None = None
        self.welcomed = False
        self.outbox = bytearray()
        self._arriving: tuple[events.Admission, SimBuffer] | None = None
        self._decoder = Decoder(lane.kernels.crc32c, self._target)
        # The worker's side, for tests that read frames.
        self._reader = Decoder(
            lane.kernels.crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE))
        )

    def _target(self, header: Header) -> memoryview:
        if header.kind not in CHUNK_KINDS:
            self.lane.core.admit_long(self.number, header, len(self.outbox))
            return memoryview(bytearray(header.length + HEADER_SIZE))
        admission = self.lane.core.admit(self.number, header, len(self.outbox))
        if admission is None:
            return SKIP
        buffer = self.lane.take(header.length)
        self._arriving = admission, buffer
        return buffer.view

    def send(self, data: bytes) -> None:
        """Give the lane bytes from the worker."""
        rest = memoryview(data)
        while rest and self.closed is None:
            room = self._decoder.get_buffer()
            n = min(len(room), len(rest))
            room[:n] = rest[:n]
            rest = rest[n:]
            self._received(n)

    @property
    def room(self) -> int:
        """The size of the lane's read buffer between two frames."""
        return len(self._decoder.get_buffer())

    def _received(self, n: int) -> None:
        try:
            self._decoder.received(n)
            while (frame := self._decoder.next_frame()) is not None:
                self._handle(frame)
                if self.closed is not None:
                    return
        except (*PEER_ERRORS, InjectedError) as error:
            self.lane.feed(events.Broken(self.number, error))

    def _handle(self, frame: Frame) -> None:
        if frame.header.kind in (MessageKind.CONTRIBUTION, MessageKind.PUSH, MessageKind.LOG):
            if frame.header.kind == MessageKind.CONTRIBUTION:
                self.lane.compare(frame.header)
            admission, buffer = self._arriving or (None, None)
            self._arriving = None
            self.lane.feed(events.Contributed(self.number, frame.header, buffer, admission))
        else:
            self.lane.feed(events.ControlReceived(self.number, frame.header, frame.payload))
            while self.lane.core.behind(self.number):
                self.lane.feed(events.CatchUp(self.number))

    def read(self) -> list[Frame]:
        """The frames that the lane has sent since the last call."""
        if not self.outbox:
            return []
        data = bytes(self.outbox)
        self.outbox.clear()
        return self._reader.feed(data)

    def take(self, limit: int) -> bytes:
        """Take the next bytes that the lane has written, for a simulated link."""
        data = bytes(self.outbox[:limit])
        del self.outbox[:limit]
        return data

    def disconnect(self, reason: str = "the worker closed the connection") -> None:
        """End the connection."""
        if self.closed is None:
            self.closed = reason
        if self._arriving is not None:
            self.lane.give_back(self._arriving[1])
            self._arriving = None
        self.lane.feed(events.Disconnected(self.number, reason))


class SimLane:
    """`now` is the time of the simulation; `held` are the buffers in use.

    `inject` is called with each output before it is carried out, and with each size before memory
    of that size is taken; it may raise InjectedError.
    """

    def __init__(self, kernels: KernelSet | None = None, **settings: Any) -> None:
        self.kernels = kernels if kernels is not None else load()
        defaults: dict[str, Any] = {
            "lane": 0,
            "lanes": 1,
            "incarnation": bytes(16),
            "budget": 64 << 20,
            "max_reducers": MAX_REDUCERS,
            "crc32c": self.kernels.crc32c,
            "acc_itemsize": self.kernels.acc_itemsize,
            "records": 2 << 20,
            "max_runs": 1_000,
        }
        self.settings = LaneSettings(**{**defaults, **settings})
        self.core = Lane(self.settings)
        self.tables = TableKernels(self.kernels, self.take, self.give_back, _not_busy)
        self.now = 0.0
        self.sessions: dict[int, SimSession] = {}
        self.held: set[SimBuffer] = set()
        self._held_bytes = 0
        self.peak = 0
        self.stores: list[events.Store] = []  # answered by the test, with Stored
        self.dials: list[events.Dial] = []  # answered by the test, with `link` or DialFailed
        self.logs: list[str] = []
        self.about: list[dict[str, object]] = []  # the fields of `logs`
        self.unsent: frozenset[int] = frozenset()  # kinds of frames that are not sent
        # CRCs of one job's contributions on all its lanes, by key, round, chunk and rank.
        self.bodies: dict[tuple[int, int, int, int], int] | None = None
        self.held_in: dict[tuple[int, int, int, int], int] = {}  # epoch of the first HELD, too
        self.inject: Callable[[events.Output | int], None] = lambda what: None
        self._opened = 0
        self._behind: dict[int, None] = {}  # sessions that need turns

    def connect(self) -> SimSession:
        self._opened += 1
        session = SimSession(self, self._opened)
        self.sessions[session.number] = session
        self.feed(events.Opened(session.number))
        return session

    def link(self, dial: events.Dial) -> SimSession:
        """The connection that the lane has dialed stands."""
        self._opened += 1
        session = SimSession(self, self._opened)
        self.sessions[session.number] = session
        self.feed(events.Dialed(dial.link, session.number))
        return session

    def snapshot(self) -> dict[str, Any]:
        """Returns the lane's numbers, and the numbers of each job or group."""
        found: dict[str, Any] = self.lane_report().as_json()["core"]
        return found

    def report(self) -> dict[str, Any]:
        """The connected ranks and the awaited ranks, by run."""
        found: dict[str, Any] = self.lane_report().as_json()["report"]
        return found

    def lane_report(self, **changes: Any) -> LaneReport:
        """Returns the report as the main process has it; ``changes`` are fields of LaneNumbers."""
        zeros: dict[str, Any] = dict.fromkeys((field.name for field in fields(LaneNumbers)), 0)
        zeros |= {"kernels": "native", "compiled": True, "refused": {}, **changes}
        zeros["core"] = self.core.snapshot()
        return put_together(LaneNumbers(**zeros), self.core.parts(self.now))

    def tick(self, seconds: float = 0.05) -> None:
        """Let time pass with regular ticks, because after a late tick the lane blames nobody."""
        end = self.now + seconds
        while self.now < end - 0.25:
            self.stand_still(0.25)
        self.stand_still(end - self.now)

    def stand_still(self, seconds: float) -> None:
        """Let time pass without ticks, except one at the end."""
        self.now += seconds
        self.feed(events.Tick())
        for number in list(self._behind):
            self.catch_up(number)

    def catch_up(self, number: int) -> None:
        """Give the session a turn: one part of the work that its run is behind with."""
        if self.core.behind(number):
            self.feed(events.CatchUp(number))
        else:
            self._behind.pop(number, None)

    def feed(self, event: events.Event) -> None:
        """Carry out all outputs as the shell does, then report the outcomes to the core."""
        came: list[events.Effect] = []
        for output in self.core.handle(event, self.now):
            try:
                self.inject(output)
                came += self._execute(output)
            except InjectedError as error:
                failed = failure_of(output, error)
                came += [failed] if failed is not None else []
                if isinstance(output, events.Free):
                    self._give_back_all(output)  # as the real pool does, even if the output fails
        for effect in came:
            self.feed(effect)

    def compare(self, header: Header) -> None:
        """Assert that a rank sends the same contribution to a chunk every time."""
        if self.bodies is None:
            return
        id_ = (header.key, header.round, header.chunk, header.rank)
        held = header.flags & Flag.HELD
        epoch = self.held_in.get(id_, header.epoch)
        assert held or header.epoch <= epoch, (
            f"I4: rank {header.rank} sent the result of {id_[:3]} in epoch {epoch}, and then a "
            f"contribution in epoch {header.epoch}"
        )
        if held:
            self.held_in[id_] = min(epoch, header.epoch)
            return
        before = self.bodies.setdefault(id_, header.payload_crc)
        assert before == header.payload_crc, f"I4: rank {header.rank} sent two bodies of {id_[:3]}"

    def take(self, size: int) -> SimBuffer:
        self.inject(size)
        buffer = SimBuffer(size)
        self.held.add(buffer)
        self._held_bytes += len(buffer.memory)
        self.peak = max(self.peak, self._held_bytes)
        return buffer

    def give_back(self, buffer: Any) -> None:
        assert not buffer.freed, "a buffer was freed twice"
        buffer.freed = True
        self.held.remove(buffer)
        self._held_bytes -= len(buffer.memory)

    def _give_back_all(self, output: events.Free) -> None:
        for buffer in output.buffers:
            self.give_back(buffer)

    def _execute(self, output: events.Output) -> list[events.Effect]:
        match output:
            case events.Send():
                self._send(output)
            case events.SendValue(session=session, header=header, buffer=buffer):
                header.payload_crc = self.kernels.crc32c(buffer.view[: header.length])
                frame = pack_header(header, self.kernels.crc32c)
                self._send(events.Send(0, (session,), frame, buffer, header.length))
            case events.Fold():
                return [self._fold(output)]
            case events.Finish():
                return [self._finish(output)]
            case events.Free():
                self._give_back_all(output)
            case (
                events.Inspect() | events.Fill() | events.Apply() | events.Copy() | events.Average()
            ):
                for value in output:
                    for buffer in value if isinstance(value, tuple | list) else (value,):
                        freed = isinstance(buffer, SimBuffer) and buffer.freed
                        assert not freed, f"a freed buffer was used: {output}"
                return [self.tables.run(output)]
            case events.Close(_, session, reason):
                self.sessions[session].closed = reason
            case events.Store():
                self.stores.append(output)
            case events.Dial():
                self.dials.append(output)
            case events.Behind(_, session):
                self._behind[session] = None
            case events.Log():
                self.logs.append(output.text)
                self.about.append(dict(output.about))
        return []

    def _send(self, output: events.Send) -> None:
        if output.frame[KIND_OFFSET] in self.unsent:
            return
        payload = b""
        if output.buffer is not None:
            assert not _of(output.buffer).freed, "a freed buffer was sent"
            payload = bytes(output.buffer.view[: output.length])
        assert len(payload) == output.length
        payload += output.tail
        for number in output.sessions:
            session = self.sessions[number]
            session.welcomed |= output.frame[5] == MessageKind.WELCOME
            session.outbox += output.frame + payload

    def _fold(self, output: events.Fold) -> events.Folded:
        acc, taken = output.acc, None
        first = acc is None or acc is output.parts[0]
        if acc is None:
            size = output.sum.count * self.kernels.acc_itemsize(output.sum.op, output.sum.dtype)
            acc = taken = self.take(size)
        seen = self.kernels.fold(
            output.sum.op,
            output.sum.dtype,
            output.sum.count,
            acc.view,
            list(_views(output.parts)),
            first,
        )
        return folded(output, taken, seen)

    def _finish(self, output: events.Finish) -> events.Reduced:
        acc, taken = output.acc, None
        size = result_bytes(output.sum.dtype, output.sum.count)
        if output.out is None:
            taken = self.take(size)
        out = (taken or _of(output.out)).view
        seen = self.kernels.finish(
            output.sum.op, output.sum.dtype, output.sum.count, output.sum.world,
            acc.view if acc is not None else None, list(_views(output.parts)), out,
        )  # fmt: skip
        return reduced(output, taken, self.kernels.crc32c(out[:size]), seen)


def _not_busy(buffer: Any) -> None:
    """Sessions have a copy of what was sent."""


def _of(buffer: Any) -> SimBuffer:
    assert isinstance(buffer, SimBuffer)
    return buffer


def _views(buffers: Any) -> Iterator[memoryview]:
    for buffer in buffers:
        assert not _of(buffer).freed, "a freed buffer was read"
        yield buffer.view


def snapshot_of(*lanes: LaneReport) -> Snapshot:
    """Returns the snapshot of a daemon with these lanes, and with one more lane that is down."""
    return Snapshot(
        tasks=1, monotonic_start=0.0, monotonic_now=0.0,
        version="1", protocol="1.0", mode="open", wall_now=0.0, wall_ready=1.0, ready=True,
        accepted=0, down=[2], metrics_dropped={"slow": 4}, restarts={0: 0, 1: 0, 2: 3},
        refused={"garbage": 2}, dropped_log_lines=0,
        usage=Usage(1.5, 7), lanes=list(lanes),
    )  # fmt: skip
