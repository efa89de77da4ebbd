"""Workers of the simulation: a model of the client's rules, or the client's real engine.

`ModelWorker` follows PROTOCOL.md, sections 4 to 8, and client/engine/protocol/sending.cc, for one
key and one round at a time. It uses sizes instead of bytes, and only the simulated lanes.
`EngineWorker` is the engine's own protocol state; it moves real bytes and needs all lanes real.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import engine_parts
import numpy as np

from bench.scale.host import KERNELS, ZEROS
from bench.scale.network import Frame
from reducer.core.rounds.chunk_plan import ChunkPlan
from reducer.wire import messages
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import Collective, DType, MessageKind, ReduceOp
from reducer.wire.decoder import Decoder
from reducer.wire.header import HEADER_SIZE, Header, pack_header
from reducer.wire.keys import key_id, position

KEY = "bench"
# Limit of a round's unacknowledged bytes on one lane without a grant
# (client/engine/protocol/sending.cc).
ROUND_IN_FLIGHT = 512 << 10
ROUND_IN_FLIGHT_CHUNKS = 4
_ENTRY = struct.Struct("<QQ")


class Worker(Protocol):
    """One rank. Lanes are numbered as the cluster numbers them."""

    refused: str  # why the job was not admitted

    @property
    def joined(self) -> bool: ...
    def wanted(self) -> list[int]:
        """Lanes to connect to now; each lane is returned once."""
        ...

    def opened(self, lane: int, now: float) -> None: ...
    def submit(self, now: float) -> None:
        """Begin the next round."""
        ...

    def take(self, lane: int, now: float) -> list[Frame]:
        """The frames that may be sent to the lane now."""
        ...

    def receive(self, lane: int, frame: Frame, now: float) -> None: ...
    def tick(self, now: float) -> None: ...
    @property
    def finished(self) -> int:
        """The number of finished rounds."""
        ...


@dataclass(slots=True)
class _Account:
    limit: int = 0
    used: int = 0

    def fits(self, cost: int) -> bool:
        return self.used + cost <= self.limit


@dataclass(slots=True)
class _Connection:
    """The worker's state for one lane; `chunks` are the chunks of a round that the lane owns."""

    chunks: Sequence[int]
    control: list[Frame] = field(default_factory=list)
    welcomed: bool = False
    home: int = 0
    announced: bool = False
    credit: _Account = field(default_factory=_Account)
    grant: _Account = field(default_factory=_Account)
    granted_round: int = -1
    on_grant: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    unanswered: int = 0  # cost of the round's chunks sent without a result yet
    sent: int = 0  # number of the round's chunks sent
    prefix: int = 0  # number of leading chunks whose results are held
    done: int = 0
    reported: int = 0
    unreported_cost: int = 0
    last_sent: float = 0.0
    last_heartbeat: float = 0.0


class ModelWorker:
    """The client's rules with sizes instead of bytes."""

    def __init__(
        self, rank: int, hellos: Sequence[messages.Hello], plan: ChunkPlan, owned: Sequence[range]
    ) -> None:
        """`hellos` and `owned` (the chunks of a round) by lane."""
        self.joined = False
        self.refused = ""
        self._rank = rank
        self._hellos = hellos
        self._plan = plan
        self._connections = [_Connection(chunks) for chunks in owned]
        self._unwanted = list(range(len(owned)))
        self._heartbeat = 0.25
        self._round = -1
        self._unanswered = 0
        self._key = key_id(KEY)
        chunk_bytes = plan.sent.bytes(plan.chunk_elements)
        self._round_limit = max(ROUND_IN_FLIGHT, ROUND_IN_FLIGHT_CHUNKS * chunk_bytes)

    @property
    def finished(self) -> int:
        return self._round + (self._unanswered == 0)

    def wanted(self) -> list[int]:
        lanes, self._unwanted = self._unwanted, []
        return lanes

    def opened(self, lane: int, now: float) -> None:
        payload = messages.encode(self._hellos[lane])
        self._queue(self._connections[lane], MessageKind.HELLO, payload)

    def submit(self, now: float) -> None:
        self._round += 1
        for connection in self._connections:
            connection.sent = connection.prefix = 0
            connection.held.clear()
            connection.on_grant.clear()
            self._unanswered += len(connection.chunks)

    # --- sending --------------------------------------------------------------------------------

    def take(self, lane: int, now: float) -> list[Frame]:
        connection = self._connections[lane]
        if self._round >= 0 and connection.chunks and not connection.announced:
            connection.announced = True
            payload = messages.encode(messages.Key(KEY))
            self._queue(connection, MessageKind.KEY, payload, key=self._key, chunk=connection.home)
        frames, connection.control = connection.control, []
        while self._round >= 0 and connection.sent < len(connection.chunks):
            chunk = connection.chunks[connection.sent]
            account = self._account(connection, self._plan.cost(chunk))
            if account is None:
                break
            account.used += self._plan.cost(chunk)
            connection.unanswered += self._plan.cost(chunk)
            if account is connection.grant:
                connection.on_grant.add(chunk)
            connection.sent += 1
            connection.reported = connection.done
            connection.unreported_cost = 0
            frames.append(Frame(self._contribution(chunk, connection.done)))
        if frames:
            connection.last_sent = now
        return frames

    def _account(self, connection: _Connection, cost: int) -> _Account | None:
        """The account for the next chunk: the grant of the granted round first, then the credit."""
        if connection.granted_round == self._round and connection.grant.fits(cost):
            return connection.grant
        below_limit = connection.unanswered < self._round_limit
        return connection.credit if below_limit and connection.credit.fits(cost) else None

    def _contribution(self, chunk: int, done: int) -> Header:
        return Header(
            MessageKind.CONTRIBUTION, DType.FLOAT32, ReduceOp.SUM, Collective.ALL_REDUCE,
            rank=self._rank, chunk=chunk, key=self._key, round=self._round,
            count=self._plan.count, done=done, length=self._plan.sends(chunk, self._rank, 0),
        )  # fmt: skip

    def _queue(
        self, connection: _Connection, kind: MessageKind, payload: bytes, **fields: int
    ) -> None:
        header = Header(kind, length=len(payload), **fields)
        connection.control.append(Frame(header, payload or None))

    def _queue_heartbeat(self, connection: _Connection, now: float) -> None:
        payload = b""
        if connection.done != connection.reported:
            payload = _ENTRY.pack(self._key, connection.done)
            connection.reported = connection.done
            connection.unreported_cost = 0
        connection.last_heartbeat = now
        self._queue(connection, MessageKind.HEARTBEAT, payload, chunk=connection.home)

    # --- receiving ------------------------------------------------------------------------------

    def receive(self, lane: int, frame: Frame, now: float) -> None:
        connection = self._connections[lane]
        kind = frame.header.kind
        if kind == MessageKind.RESULT:
            self._on_result(connection, frame.header, now)
        elif kind == MessageKind.GRANT:
            connection.granted_round = frame.header.round
        elif kind == MessageKind.WELCOME:
            welcome = messages.decode(messages.Welcome, frame.payload or b"")
            connection.credit.limit, connection.grant.limit = welcome.credit, welcome.grant
            connection.welcomed = True
            connection.home = welcome.slot
            self._heartbeat = welcome.heartbeat_ms / 1000
            self.joined = all(other.welcomed for other in self._connections)
        elif kind == MessageKind.ERROR:
            self.refused = messages.decode(messages.Error, frame.payload or b"").message

    def _on_result(self, connection: _Connection, header: Header, now: float) -> None:
        cost = self._plan.cost(header.chunk)
        account = connection.grant if header.chunk in connection.on_grant else connection.credit
        account.used -= cost
        connection.unanswered -= cost
        connection.held.add(header.chunk)
        chunks = connection.chunks
        while connection.prefix < len(chunks) and chunks[connection.prefix] in connection.held:
            connection.prefix += 1
        all_held = connection.prefix == len(chunks)
        connection.done = (
            position(self._round + 1, 0)
            if all_held
            else position(self._round, chunks[connection.prefix])
        )
        connection.unreported_cost += cost
        self._unanswered -= 1
        limit = connection.credit.limit
        # The next contribution reports `done`, too.
        most = limit // 2 if connection.sent == len(chunks) else limit
        if connection.unreported_cost >= most and not connection.control:
            self._queue_heartbeat(connection, now)

    def tick(self, now: float) -> None:
        for connection in self._connections:
            quiet = now - connection.last_sent >= self._heartbeat
            news = connection.done != connection.reported
            late = news and now - connection.last_heartbeat >= self._heartbeat
            if connection.welcomed and (quiet or late) and not connection.control:
                self._queue_heartbeat(connection, now)


class EngineWorker:
    """The client engine's real state; `places` has (reducer, lane) for each lane."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        reducers: int,
        table: ChunkTable,
        places: Sequence[tuple[int, int]],
        count: int,
    ) -> None:
        self.refused = ""
        self._state = engine_parts.State(
            reducers=reducers, job="bench", run_id="run" if rank == 0 else "", rank=rank,
            world_size=world_size, chunk_table=list(table), silence=1e9, worker_silence=3_600.0,
        )  # fmt: skip
        self._places = places
        self._lane_at = {place: lane for lane, place in enumerate(places)}
        self._decoders = [
            Decoder(
                KERNELS.crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE))
            )
            for _ in places
        ]
        self._count = count
        self._array: Any = np.zeros(count, np.float32)
        self._operations: list[Any] = []

    @property
    def joined(self) -> bool:
        return bool(self._state.joined)

    @property
    def finished(self) -> int:
        return sum(operation.done for operation in self._operations)

    def wanted(self) -> list[int]:
        return [self._lane_at[place] for place in self._state.wanted()]

    def opened(self, lane: int, now: float) -> None:
        self._state.opened(*self._places[lane], now)

    def submit(self, now: float) -> None:
        operation = self._state.submit(
            int(Collective.ALL_REDUCE), int(ReduceOp.SUM), int(DType.FLOAT32), False, KEY, 0,
            self._count, self._array, self._array,
        )  # fmt: skip
        self._operations.append(operation)

    def take(self, lane: int, now: float) -> list[Frame]:
        data = self._state.outgoing(*self._places[lane], 1 << 40, now)
        frames = []
        for sent in self._decoders[lane].feed(data):
            is_control = sent.header.kind != MessageKind.CONTRIBUTION
            payload = bytes(sent.payload) if sent.payload and is_control else None
            frames.append(Frame(sent.header, payload))
        return frames

    def receive(self, lane: int, frame: Frame, now: float) -> None:
        header = frame.header
        payload = ZEROS[: header.length] if frame.payload is None else frame.payload
        data = pack_header(header, KERNELS.crc32c) + bytes(payload)
        self._state.incoming(*self._places[lane], data, now)
        if self._state.error is not None:
            self.refused = str(self._state.error)

    def tick(self, now: float) -> None:
        self._state.tick(now)
