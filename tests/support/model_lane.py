"""A lane that implements only PROTOCOL.md, section 11, to the letter: a reference for workers.

It has one run, float32 sums of all_reduce and no memory limits. A worker that breaks a rule raises
an AssertionError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from reducer.wire import messages
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import MessageKind
from reducer.wire.decoder import Decoder, Frame
from reducer.wire.header import HEADER_SIZE, Header
from tests.support.checksum import crc32c
from tests.support.frames import control, frame

Position = int


@dataclass
class Chunk:
    """One chunk of a round on its owner."""

    parts: dict[int, bytes] = field(default_factory=dict)
    counts: set[int] = field(default_factory=set)
    result: bytes | None = None


@dataclass
class Void:
    """A round whose ranks differ."""

    verdict: messages.Refused
    abandoned: set[int] = field(default_factory=set)


@dataclass
class Key:
    """One key in one stream."""

    done: list[Position]
    described: dict[int, dict[int, int]] = field(default_factory=dict)
    voids: dict[int, Void] = field(default_factory=dict)
    chunks: dict[Position, Chunk] = field(default_factory=dict)

    @property
    def stable(self) -> Position:
        return min(self.done)


@dataclass
class Session:
    """The lane's end of one connection."""

    lane: ModelLane
    rank: int = -1
    outbox: bytearray = field(default_factory=bytearray)
    charges: dict[tuple[int, Position], int] = field(default_factory=dict)
    route: int = 0
    decoder: Decoder = field(
        default_factory=lambda: Decoder(
            crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE))
        )
    )

    def send(self, data: bytes) -> None:
        """Feed bytes from the worker."""
        for each in self.decoder.feed(data):
            self.lane.handle(self, each)

    def take(self, limit: int) -> bytes:
        data = bytes(self.outbox[:limit])
        del self.outbox[:limit]
        return data


class ModelLane:
    """`lane` of `lanes` of the reducer in `slot`; each process has another `incarnation`."""

    def __init__(
        self, slot: int, lane: int, lanes_by_slot: tuple[int, ...], world: int, table: ChunkTable,
        credit: int, incarnation: bytes, now: float,
    ) -> None:  # fmt: skip
        self.slot, self.lane, self.lanes_by_slot = slot, lane, lanes_by_slot
        self.world, self.table, self.credit = world, table, credit
        self.incarnation = incarnation
        self.instance = 0
        slots = len(lanes_by_slot)
        self.route = messages.Route(0, (0,) * slots, (1,) * slots, lanes_by_slot)
        self.formed = False
        self.sessions: dict[int, Session] = {}
        self.disconnected: dict[int, float] = {}
        self.left: set[int] = set()
        self.told: messages.Absent = messages.Absent()
        self.streams: dict[int, dict[int, Key]] = {}
        self.now = self.beat_at = now
        self.duplicates = 0

    # --- connections ----------------------------------------------------------------------------

    def disconnect(self, session: Session) -> None:
        if self.sessions.get(session.rank) is session:
            del self.sessions[session.rank]
            self.disconnected[session.rank] = self.now
        session.rank = -1

    def tick(self, now: float) -> None:
        self.now = now
        gone = [r for r, at in self.disconnected.items() if now - at >= 0.5 and r not in self.left]
        absent = messages.Absent(tuple((r, "reset") for r in sorted(gone)), tuple(self.left))
        if self.formed and absent != self.told:
            self.told = absent
            self._to_all(control(absent))
        if now - self.beat_at >= 0.25:
            self.beat_at = now
            self._to_all(frame(Header(kind=MessageKind.HEARTBEAT)))
            self._grant()

    def _to_all(self, data: bytes, but: int = -1) -> None:
        for rank, session in self.sessions.items():
            if rank != but:
                session.outbox += data

    def handle(self, session: Session, got: Frame) -> None:
        if session.rank < 0 and got.header.kind != MessageKind.HELLO:
            return
        payload = got.payload or b""
        match got.header.kind:
            case MessageKind.HELLO:
                self._hello(session, messages.decode(messages.Hello, payload))
            case MessageKind.CONTRIBUTION:
                self._contribution(session, got.header, bytes(payload))
            case MessageKind.DESCRIBE:
                self._describe(session, got.header)
            case MessageKind.ABANDON:
                self._abandon(session, got.header, messages.decode(messages.Abandon, payload))
            case MessageKind.HEARTBEAT:
                self._heartbeat(session, got.header, bytes(payload))
            case MessageKind.ROUTE:
                self._learn(session, messages.decode(messages.Route, payload))
            case MessageKind.SUSPECT:
                if 0 in self.sessions:
                    suspicion = messages.decode(messages.Suspect, payload)
                    self.sessions[0].outbox += control(suspicion)
            case MessageKind.BYE:
                self.left.add(session.rank)
            case MessageKind.ERROR:
                raise AssertionError(messages.decode(messages.Error, payload))

    def _hello(self, session: Session, hello: messages.Hello) -> None:
        session.rank = hello.rank
        self.sessions[hello.rank] = session
        self.disconnected.pop(hello.rank, None)
        assert hello.rejoin == (self.formed or self.incarnation[-1] > 0)
        if self.formed:
            self._welcome(session)
        elif len(self.sessions) == self.world:
            self.formed = True
            self.instance += 1
            for each in self.sessions.values():
                self._welcome(each)
        else:
            lanes = self.lanes_by_slot[self.slot]
            session.outbox += control(messages.Pending(lanes, self.lane, self.incarnation))

    def _welcome(self, session: Session) -> None:
        route = self.route
        session.outbox += control(
            messages.Welcome(
                "run", self.slot, len(self.lanes_by_slot), self.lanes_by_slot[self.slot],
                self.lane, self.incarnation, self.world, 0, route.route, self.table, self.credit,
                self.credit, 250, 0, self.instance, route.since, route.live, route.lanes_by_slot,
            )
        )  # fmt: skip
        if self.told != messages.Absent():
            session.outbox += control(self.told)
        for home, keys in self.streams.items():
            self._stable((session,), home, {key: state.stable for key, state in keys.items()})
            for key, state in keys.items():
                for number in state.voids:
                    self._refuse(home, key, number, session)

    # --- routes ---------------------------------------------------------------------------------

    def _learn(self, session: Session, route: messages.Route) -> None:
        session.route = max(session.route, route.route)
        if route.route <= self.route.route:
            return
        for home, (old, new) in enumerate(zip(self.route.since, route.since, strict=True)):
            if old != new:
                self.streams.pop(home, None)
                for each in self.sessions.values():
                    each.charges = {
                        at: cost
                        for at, cost in each.charges.items()
                        if self._home(at[0], at[1] % (1 << 24)) != home
                    }
        self.route = route
        self._to_all(control(route), session.rank)

    def _home(self, key: int, chunk: int) -> int:
        return (key % 2**32 + chunk) % len(self.lanes_by_slot)

    def _owns(self, key: int, chunk: int) -> bool:
        slots = len(self.lanes_by_slot)
        home, q = self._home(key, chunk), (key % 2**32 + chunk) // slots
        live = [slot for slot in range(slots) if self.route.live[slot]]
        if home in live:
            return (home, q % self.route.lanes_by_slot[home]) == (self.slot, self.lane)
        slot = live[q % len(live)]
        return (slot, q // len(live) % self.route.lanes_by_slot[slot]) == (self.slot, self.lane)

    def _current(self, session: Session, home: int, since: int) -> bool:
        assert since <= max(session.route, self.route.route), "of a route that it never announced"
        return since == self.route.since[home]

    # --- rounds ---------------------------------------------------------------------------------

    def _key(self, home: int, key: int) -> Key:
        return self.streams.setdefault(home, {}).setdefault(key, Key([0] * self.world))

    def _contribution(self, session: Session, header: Header, payload: bytes) -> None:
        home = self._home(header.key, header.chunk)
        if not self.formed or not self._current(session, home, header.route):
            return
        assert self._owns(header.key, header.chunk)
        self._done(session, home, header.key, header.done)
        key = self._key(home, header.key)
        at = (header.round << 24) + header.chunk
        if at < key.stable:
            return
        if header.chunk == 0:
            self._describe(session, header)
        if header.round in key.voids:
            session.charges[header.key, at] = max(len(payload), 4_096)
            return
        chunk = key.chunks.setdefault(at, Chunk())
        chunk.counts.add(header.count)
        if session.rank in chunk.parts:
            self.duplicates += 1
            assert chunk.parts[session.rank] == payload, "two copies differ"
        else:
            session.charges[header.key, at] = max(len(payload), 4_096)
            assert sum(session.charges.values()) <= 2 * self.credit, "more than credit and grant"
            chunk.parts[session.rank] = payload
        if chunk.result is not None:
            session.outbox += self._result(header, key, chunk.result)
        elif len(chunk.parts) == self.world and len(chunk.counts) == 1:
            arrays = [np.frombuffer(chunk.parts[r], np.float32) for r in range(self.world)]
            chunk.result = sum(arrays[1:], arrays[0]).tobytes()
            for each in self.sessions.values():
                each.charges.pop((header.key, at), None)
                each.outbox += self._result(header, key, chunk.result)

    def _describe(self, session: Session, header: Header) -> None:
        home = self._home(header.key, 0)
        if not self.formed or not self._current(session, home, header.route):
            return
        key = self._key(home, header.key)
        said = key.described.setdefault(header.round, {})
        said[session.rank] = header.count
        if len(said) == self.world and len(set(said.values())) > 1:
            self._void(home, header.key, header.round, messages.Refused(5, f"counts {said}"))

    def _abandon(self, session: Session, header: Header, why: messages.Abandon) -> None:
        home, number = header.chunk, header.round
        if not self.formed or not self._current(session, home, header.route):
            return
        verdict = messages.Refused(why.code, why.message)
        key = self._key(home, header.key)
        key.voids.setdefault(number, Void(verdict)).abandoned.add(session.rank)
        session.charges = {
            (k, at): cost
            for (k, at), cost in session.charges.items()
            if (k, at >> 24, self._home(k, at % (1 << 24))) != (header.key, number, home)
        }
        self._void(home, header.key, number, verdict)

    def _void(self, home: int, key: int, number: int, verdict: messages.Refused) -> None:
        state = self._key(home, key)
        state.voids.setdefault(number, Void(verdict))
        state.chunks = {at: c for at, c in state.chunks.items() if at >> 24 != number}
        for session in self.sessions.values():
            self._refuse(home, key, number, session)

    def _refuse(self, home: int, key: int, number: int, session: Session) -> None:
        void = self._key(home, key).voids[number]
        if session.rank in void.abandoned:
            return
        since = self.route.since[home]
        session.outbox += control(void.verdict, key=key, round=number, chunk=home, route=since)

    def _result(self, header: Header, key: Key, payload: bytes) -> bytes:
        answer = header.replace(kind=MessageKind.RESULT, rank=0xFFFF, done=0, stable=key.stable)
        return frame(answer, payload)

    def _heartbeat(self, session: Session, header: Header, payload: bytes) -> None:
        if payload and self.formed and self._current(session, header.chunk, header.route):
            for key, done in struct.iter_unpack("<QQ", payload):
                self._done(session, header.chunk, key, done)

    def _done(self, session: Session, home: int, key: int, done: Position) -> None:
        state = self._key(home, key)
        before = state.stable
        assert done >= state.done[session.rank], "done went back"
        state.done[session.rank] = done
        if state.stable == before:
            return
        state.chunks = {at: chunk for at, chunk in state.chunks.items() if at >= state.stable}
        for each in self.sessions.values():
            each.charges = {
                (k, at): cost
                for (k, at), cost in each.charges.items()
                if k != key or self._home(k, at % (1 << 24)) != home or at >= state.stable
            }
        self._stable(tuple(self.sessions.values()), home, {key: state.stable})

    def _stable(self, sessions: tuple[Session, ...], home: int, stable: dict[int, int]) -> None:
        payload = b"".join(struct.pack("<QQ", *entry) for entry in stable.items())
        header = Header(kind=MessageKind.HEARTBEAT, chunk=home, route=self.route.since[home])
        for session in sessions:
            session.outbox += frame(header, payload)

    def _grant(self) -> None:
        """Grant the first open round in the order of keys; any fixed order works here."""
        waiting = [
            (home, key, at >> 24)
            for home, keys in self.streams.items()
            for key, state in keys.items()
            for at, chunk in state.chunks.items()
            if chunk.result is None
        ]
        if waiting:
            home, key, number = min(waiting)
            since = self.route.since[home]
            grant = Header(kind=MessageKind.GRANT, key=key, round=number, chunk=home, route=since)
            self._to_all(frame(grant))
