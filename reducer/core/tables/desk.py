"""Takes the frames of the connections that use tables, and brings each to its table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.control_frames import payload_frame
from reducer.core.surface.events import Admission, Free, Log, Output, Send
from reducer.core.tables import frames
from reducer.core.tables.chain import Durable
from reducer.core.tables.context import Context
from reducer.core.tables.holdings import Holdings, room_of
from reducer.core.tables.place import Place
from reducer.core.tables.replica import Replica
from reducer.core.tables.shard import Shard
from reducer.core.tables.table import Table
from reducer.core.tables.updates import VALUES
from reducer.core.tables.workers import READER, Seat
from reducer.wire.codes import LOG, DType, MessageKind
from reducer.wire.errors import EvictedError, ProtocolError, ReductionError, StateLostError
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice, TableCall

_FLOAT32: Final = int(DType.FLOAT32)


class PushAdmission(Admission):
    """The table and shard of a PUSH."""

    __slots__ = ("seat", "shard", "table")

    def __init__(self, seat: Seat, table: Table, shard: Shard) -> None:
        self.seat = seat
        self.table = table
        self.shard = shard


class Request:
    """One call of a connection."""

    __slots__ = ("call", "holdings", "now", "number", "seat")

    def __init__(
        self, seat: Seat, holdings: Holdings, number: int, call: TableCall, now: float
    ) -> None:
        self.seat = seat
        self.holdings = holdings
        self.number = number
        self.call = call
        self.now = now


class TableDesk:
    """All tables of a lane."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._holdings: dict[tuple[str, str, int], Holdings] = {}
        self._links: dict[int, Holdings] = {}  # of primaries, by session
        self._seats: dict[int, tuple[Seat, Holdings]] = {}
        self._calls: dict[str, Callable[[Request, list[Output]], None]] = {
            "table": self._table,
            "clock": self._clock,
            "rate": self._rate,
            "list": self._list,
            "drop": self._drop,
            "enter": self._enter,
            "set": self._set,
            "folded": self._folded,
            "commit": self._commit,
        }

    def has(self, session: int) -> bool:
        return session in self._seats or session in self._links

    @property
    def holdings(self) -> list[Holdings]:
        return list(self._holdings.values())

    @property
    def is_empty(self) -> bool:
        return not self._holdings

    @property
    def tables(self) -> int:
        """How many tables the lane has."""
        return sum([len(holdings.by_key) for holdings in self._holdings.values()])

    def room(self, session: int) -> int:
        """How many bytes may wait for the session."""
        if session in self._links:
            return room_of(self._settings.credit)
        return room_of(self._seats[session][0].credit)

    # --- sessions -------------------------------------------------------------------------------

    def open(
        self, session: int, number: int, call: TableCall, now: float, out: list[Output]
    ) -> None:
        """The first call of a connection. Raises the ProtocolError family."""
        if call.worker != READER and len(call.incarnation) != 16:
            raise ProtocolError(f"worker {call.worker} opens tables without an incarnation")
        key = (call.job, call.run_id, call.partition)
        holdings = self._holdings.get(key)
        self._check_term(call, holdings)
        if holdings is None:
            partitions = max(1, call.partitions)
            holdings = Holdings(self._context, call.job, call.run_id, call.partition, partitions)
        if holdings.replica is not None or call.term > holdings.chain.term:
            backup = Place(call.backup, call.backup_lane, call.backup_reducer)
            place = backup if call.backup else None
            holdings.lead(call.term, place, call.filling, now, out)
        seat = Seat(session, call.worker, call.incarnation, self._settings.credit)
        holdings.enter(seat, now, out)
        self._holdings[key] = holdings
        self._seats[session] = (seat, holdings)
        answer = Notice(
            "open",
            lanes=self._settings.lanes,
            lane=self._settings.lane,
            incarnation=self._settings.incarnation,
            credit=seat.credit,
        )
        out.append(frames.notice(answer, (session,), self._context.crc, number))

    def _check_term(self, call: TableCall, holdings: Holdings | None) -> None:
        """Raises StateLostError or EvictedError if this lane cannot be the primary of that term."""
        where = f"partition {call.partition} of the tables of job {call.job!r}"
        is_other = call.reducer not in (b"", self._settings.incarnation)
        if is_other or (holdings is None and call.term > 1):
            raise StateLostError(f"{where} is not here: this process has started later")
        if holdings is None:
            return
        is_backup = holdings.replica is not None
        if holdings.is_retired or call.term < holdings.chain.term:
            raise EvictedError(
                f"{where} has the term {holdings.chain.term} here, and the worker knows "
                f"{call.term}: look up where it is"
            )
        if is_backup and call.term == holdings.chain.term:
            raise EvictedError(f"{where}: this lane is the backup of term {call.term}")

    # --- links between lanes --------------------------------------------------------------------

    def follow(
        self, session: int, number: int, call: TableCall, now: float, out: list[Output]
    ) -> None:
        """A primary sends this lane its log. Raises the ProtocolError family."""
        key = (call.job, call.run_id, call.partition)
        holdings = self._holdings.get(key)
        where = f"partition {call.partition} of the tables of job {call.job!r}"
        if call.reducer != self._settings.incarnation:
            raise StateLostError(f"{where} is not here: this process has started later")
        if holdings is not None and (
            call.term < holdings.chain.term
            or (holdings.replica is None and call.term == holdings.chain.term)
        ):
            raise EvictedError(f"{where} has the term {holdings.chain.term} at its backup")
        replica = None if holdings is None else holdings.replica
        log = (call.incarnation, call.number)
        goes_on = replica is not None and (replica.primary, replica.begun) == log
        if holdings is None or not goes_on:
            if not call.filling and call.term > 1:
                raise StateLostError(f"{where} was never sent to this lane")
            if holdings is not None:
                holdings.retire("the lane is filled anew", out)
                holdings.end(now, out)
            holdings = Holdings(
                self._context, call.job, call.run_id, call.partition, call.partitions
            )
            replica = holdings.replica = Replica(self._context, holdings, *log)
            self._holdings[key] = holdings
        assert replica is not None
        self._context.budget.take(call.job, room_of(self._settings.credit), "a log")
        holdings.chain.term = call.term
        self._links[session] = holdings
        replica.session = session
        answer = Notice("follow", version=replica.position, partition=call.partition)
        out.append(frames.notice(answer, (session,), self._context.crc, number))

    def is_link(self, session: int) -> bool:
        """Whether a primary sends its log on this session."""
        return session in self._links

    # --- sessions that end ----------------------------------------------------------------------

    def forget(self, session: int, now: float) -> list[Output]:
        """The session has ended. Its worker has a moment to connect again."""
        out: list[Output] = []
        followed = self._links.pop(session, None)
        if followed is not None:
            self._context.budget.give(followed.job, room_of(self._settings.credit))
        found = self._seats.pop(session, None)
        if found is not None:
            seat, holdings = found
            holdings.leave(seat, now, out)
            self._maybe_forget(holdings, now, out)
        return out

    def closed(self, session: int) -> None:
        """The lane has closed the session. Its worker is lost at the next tick."""
        found = self._seats.get(session)
        if found is not None:
            seat, holdings = found
            holdings.workers.leave(seat, 0.0)

    def bye(self, session: int, now: float, out: list[Output]) -> None:
        """The worker leaves: it is taken out of clocks and steps at once."""
        if session not in self._seats:
            return
        seat, holdings = self._seats[session]
        worker = holdings.workers.find(seat.worker)
        if worker is not None and worker.seat is seat:
            worker.has_left = True
            holdings.put_out(worker, now, out)

    def tick(self, now: float) -> list[Output]:
        """Take out workers that have not come back in time, and tick the links."""
        out: list[Output] = []
        for holdings in self._holdings.values():
            if holdings.link is not None:
                holdings.link.tick(now, out)
            if holdings.replica is not None:
                continue
            for worker in holdings.workers.all():
                gone = worker.seat is None and worker.is_in
                if gone and now - worker.gone_at > self._settings.absent_after:
                    text = f"worker {worker.number} of job {holdings.job!r} is lost: tables go on"
                    out.append(Log(0, logging.WARNING, text, {"job": holdings.job}))
                    holdings.put_out(worker, now, out)
        return out

    def _maybe_forget(self, holdings: Holdings, now: float, out: list[Output]) -> None:
        if not holdings.seats and not holdings.by_key and holdings.replica is None:
            key = (holdings.job, holdings.run_id, holdings.partition)
            if holdings.chain.backup is None and self._holdings.get(key) is holdings:
                del self._holdings[key]
                holdings.end(now, out)

    # --- pushes and pulls -----------------------------------------------------------------------

    def admit(self, session: int, header: Header) -> Admission | None:
        """Find the table of a PUSH or a LOG, before its memory is allocated. None: discard the
        payload.

        Raises the ProtocolError family.
        """
        if header.kind == LOG:
            replica = self._replica_of(session)
            return Admission() if replica.admit(header) else None
        seat, holdings = self._seats[session]
        if header.key in holdings.dropped:
            return None
        table, shard = self._place(seat, holdings, header)
        if seat.worker == READER and not header.flags & VALUES:
            raise ProtocolError(f"a reader sent an update of table {table.name!r}")
        if header.length != shard.size or header.dtype != _FLOAT32:
            raise ProtocolError(
                f"{seat} sent {header.length:,} bytes of dtype {header.dtype} for shard "
                f"{shard.number} of table {table.name!r}; expected {shard.size:,} of float32"
            )
        if seat.unanswered and seat.unanswered + header.length > seat.credit:
            raise ProtocolError(
                f"{seat} sent {header.length:,} bytes with {seat.unanswered:,} bytes unanswered; "
                f"its credit is {seat.credit:,}"
            )
        if not self._wants(seat, holdings, table, shard, header):
            return None
        return PushAdmission(seat, table, shard)

    def _wants(
        self, seat: Seat, holdings: Holdings, table: Table, shard: Shard, header: Header
    ) -> bool:
        if header.flags & VALUES:
            return holdings.updates.wants_values(table, shard, header)
        if table.steps is not None:
            return holdings.stepping.wants(table, shard, seat, header)
        return holdings.updates.wants_update(table, shard, seat, header)

    def push(
        self, session: int, header: Header, buffer: Buffer | None, now: float, out: list[Output]
    ) -> None:
        """A PUSH or a LOG is complete. `buffer` is None if its payload is empty or discarded."""
        if header.kind == LOG:
            self._replica_of(session).take(header, buffer, now, out)
            return
        seat, holdings = self._seats[session]
        if header.key in holdings.dropped:
            if buffer is not None:
                out.append(Free(0, (buffer,)))
            return
        table, shard = self._place(seat, holdings, header)
        seat.unanswered += header.length
        table.counts.bytes_in += header.length
        if header.flags & VALUES:
            holdings.updates.take_values(table, shard, seat, header, buffer, now, out)
        elif table.steps is not None:
            holdings.stepping.take(table, shard, seat, header, buffer, out)
        else:
            holdings.updates.take_update(table, shard, seat, header, buffer, out)

    def _replica_of(self, session: int) -> Replica:
        holdings = self._links.get(session)
        if holdings is None or holdings.replica is None:
            raise EvictedError("this lane follows no log on this connection")
        return holdings.replica

    def pull(self, session: int, header: Header, out: list[Output]) -> None:
        if session not in self._seats:
            raise ProtocolError("a PULL on a link between lanes")
        seat, holdings = self._seats[session]
        if header.key in holdings.dropped:
            return
        table, shard = self._place(seat, holdings, header)
        holdings.reads.pull(table, shard, seat, header, out)

    def _place(self, seat: Seat, holdings: Holdings, header: Header) -> tuple[Table, Shard]:
        table = holdings.by_key.get(header.key)
        if table is None:
            raise StateLostError(
                f"job {holdings.job!r} has no table with the id {header.key:#x} here: it was "
                "dropped, or never described"
            )
        shard = table.shards.get(header.chunk)
        if shard is None:
            raise ProtocolError(
                f"{seat} named shard {header.chunk} of table {table.name!r}, which this lane does "
                "not have"
            )
        return table, shard

    # --- calls ----------------------------------------------------------------------------------

    def call(
        self, session: int, number: int, call: TableCall, now: float, out: list[Output]
    ) -> None:
        """A call behind `open`. A call that fails is refused, and the connection stays."""
        if session not in self._seats:
            raise ProtocolError(f"the call {call.call} on a link between lanes")
        seat, holdings = self._seats[session]
        handler = self._calls.get(call.call)
        if handler is None:
            raise ProtocolError(f"{seat} opens tables twice on one connection")
        try:
            handler(Request(seat, holdings, number, call, now), out)
        except ReductionError as error:
            text = str(error)[:4_000]
            refusal = Notice(call.call, code=int(error.code), message=text, name=call.name)
            out.append(frames.notice(refusal, (session,), self._context.crc, number))

    def heartbeat(self, session: int) -> Output:
        return Send(
            0, (session,), payload_frame(MessageKind.HEARTBEAT, b"", self._context.crc), None, 0
        )

    def _answer(self, request: Request, answer: Notice, out: list[Output]) -> None:
        out.append(
            frames.notice(answer, (request.seat.session,), self._context.crc, request.number)
        )

    def _table(self, request: Request, out: list[Output]) -> None:
        table, clock = request.holdings.describe(request.seat, request.call, request.now, out)
        self._answer(request, replace(table.described("table"), clock=clock), out)
        if table.steps is not None and request.seat.worker != READER:
            request.holdings.stepping.greet(table, request.seat, request.now, out)

    def _clock(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        if table.clocks is None:
            raise ProtocolError(f"table {table.name!r} has steps and no clocks")
        worker, clock = request.seat.worker, request.call.clock
        request.holdings.advance(table, worker, clock, request.now, out)

    def _rate(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        if request.seat.worker == READER:
            raise ProtocolError("a reader cannot change a learning rate")
        if request.call.rate < 0:
            raise ProtocolError(f"table {table.name!r}: the call names no learning rate")
        if request.call.number <= table.rate_number:  # a repeat, or a question
            self.rated(request, table, out)
            return
        then = _Rated(self, request, table)
        call = TableCall(
            "rate", name=table.name, rate=request.call.rate, number=request.call.number
        )
        request.holdings.chain.call(call, READER, then, request.now, out)

    def rated(self, request: Request, table: Table, out: list[Output]) -> None:
        """The learning rate is durable."""
        table.set_rate(request.call.rate, request.call.number)
        answer = replace(table.described("rate"), version=table.rate_number)
        self._answer(request, answer, out)

    def _list(self, request: Request, out: list[Output]) -> None:
        tables = sorted(request.holdings.by_key.values(), key=_name)
        for place, table in enumerate(tables, 1):
            answer = replace(table.described("list"), more=place < len(tables))
            self._answer(request, answer, out)
        if not tables:
            self._answer(request, Notice("list"), out)

    def _drop(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        then = _Dropped(self, request, table)
        call = TableCall("drop", name=table.name)
        request.holdings.chain.call(call, READER, then, request.now, out)

    def dropped(self, request: Request, table: Table, out: list[Output]) -> None:
        """The end of the table is durable."""
        if table.key in request.holdings.by_key:
            request.holdings.drop(table, out)
        self._answer(request, Notice("drop", name=request.call.name), out)

    def _enter(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        request.holdings.stepping.enter(table, request.seat, request.call, request.now, out)

    def _set(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        request.holdings.stepping.set_of(table, request.call, request.now, out)

    def _folded(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        request.holdings.stepping.folded(table, request.call, request.now, out)

    def _commit(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        step, generation = request.call.step, request.call.generation
        request.holdings.stepping.commit(table, step, generation, request.now, out)


class _Rated(Durable):
    def __init__(self, desk: TableDesk, request: Request, table: Table) -> None:
        self._desk = desk
        self._request = request
        self._table = table

    def durable(self, now: float, out: list[Output]) -> None:
        self._desk.rated(self._request, self._table, out)


class _Dropped(Durable):
    def __init__(self, desk: TableDesk, request: Request, table: Table) -> None:
        self._desk = desk
        self._request = request
        self._table = table

    def durable(self, now: float, out: list[Output]) -> None:
        self._desk.dropped(self._request, self._table, out)


def _name(table: Table) -> str:
    return table.name
