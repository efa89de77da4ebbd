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
from reducer.core.tables.context import Context
from reducer.core.tables.holdings import Holdings, room_of
from reducer.core.tables.shard import Shard
from reducer.core.tables.table import Table
from reducer.core.tables.updates import VALUES
from reducer.core.tables.workers import READER, Seat
from reducer.wire.codes import DType, MessageKind
from reducer.wire.errors import ProtocolError, ReductionError, StateLostError
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice, TableCall

_FLOAT32: Final = int(DType.FLOAT32)


class PushAdmission(Admission):
    """Where a PUSH belongs."""

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
        self._holdings: dict[tuple[str, str], Holdings] = {}
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
        return session in self._seats

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
        return room_of(self._seats[session][0].credit)

    # --- sessions -------------------------------------------------------------------------------

    def open(
        self, session: int, number: int, call: TableCall, now: float, out: list[Output]
    ) -> None:
        """The first call of a connection. Raises the ProtocolError family."""
        if call.worker != READER and len(call.incarnation) != 16:
            raise ProtocolError(f"worker {call.worker} opens tables without an incarnation")
        key = (call.job, call.run_id)
        holdings = self._holdings.get(key)
        if holdings is None:
            holdings = Holdings(self._context, *key)
        seat = Seat(session, call.worker, call.incarnation, self._settings.credit)
        holdings.enter(seat, out)
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

    def forget(self, session: int, now: float) -> list[Output]:
        """The session has ended. Its worker has a moment to connect again."""
        out: list[Output] = []
        found = self._seats.pop(session, None)
        if found is not None:
            seat, holdings = found
            holdings.leave(seat, now, out)
            self._maybe_forget(holdings)
        return out

    def closed(self, session: int) -> None:
        """The lane has closed the session. Its worker is lost at the next tick."""
        found = self._seats.get(session)
        if found is not None:
            seat, holdings = found
            holdings.workers.leave(seat, 0.0)

    def bye(self, session: int, now: float, out: list[Output]) -> None:
        """The worker leaves: it is taken out of clocks and steps at once."""
        seat, holdings = self._seats[session]
        worker = holdings.workers.find(seat.worker)
        if worker is not None and worker.seat is seat:
            worker.has_left = True
            holdings.put_out(worker, out)

    def tick(self, now: float) -> list[Output]:
        """Put workers out that have not come back in time."""
        out: list[Output] = []
        for holdings in self._holdings.values():
            for worker in holdings.workers.all():
                gone = worker.seat is None and worker.is_in
                if gone and now - worker.gone_at > self._settings.absent_after:
                    text = f"worker {worker.number} of job {holdings.job!r} is lost: tables go on"
                    out.append(Log(0, logging.WARNING, text, {"job": holdings.job}))
                    holdings.put_out(worker, out)
        return out

    def _maybe_forget(self, holdings: Holdings) -> None:
        if not holdings.seats and not holdings.by_key:
            self._holdings.pop((holdings.job, holdings.run_id), None)

    # --- pushes and pulls -----------------------------------------------------------------------

    def admit(self, session: int, header: Header, unread: int) -> PushAdmission | None:
        """Returns where a PUSH belongs, before memory is taken for it; None: discard its payload.

        Raises the ProtocolError family.
        """
        seat, holdings = self._seats[session]
        if header.key in holdings.dropped:
            return None
        table, shard = self._place(seat, holdings, header)
        if seat.worker == READER:
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
        """A PUSH is complete; `buffer` is None if its payload was discarded."""
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

    def pull(self, session: int, header: Header, out: list[Output]) -> None:
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
        """A call behind `open`. What it asks for in vain is refused, and the connection stays."""
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
        table, clock = request.holdings.describe(request.seat, request.call, out)
        self._answer(request, replace(table.described("table"), clock=clock), out)
        if table.steps is not None and request.seat.worker != READER:
            request.holdings.stepping.greet(table, request.seat, out)

    def _clock(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        if table.clocks is None:
            raise ProtocolError(f"table {table.name!r} has steps and no clocks")
        if table.clocks.advance(request.seat.worker, request.call.clock):
            request.holdings.look(table, out)

    def _rate(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        if request.seat.worker == READER:
            raise ProtocolError("a reader cannot change a learning rate")
        if request.call.rate < 0:
            raise ProtocolError(f"table {table.name!r}: the call names no learning rate")
        if request.call.number > table.rate_number:
            table.rate, table.rate_number = request.call.rate, request.call.number
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
        request.holdings.drop(request.holdings.find(request.call.name), out)
        self._answer(request, Notice("drop", name=request.call.name), out)

    def _enter(self, request: Request, out: list[Output]) -> None:
        request.holdings.stepping.enter(
            request.holdings.find(request.call.name), request.seat, request.call, request.now, out
        )

    def _set(self, request: Request, out: list[Output]) -> None:
        request.holdings.stepping.set_of(
            request.holdings.find(request.call.name), request.call, out
        )

    def _folded(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        request.holdings.stepping.folded(table, request.call, request.now, out)

    def _commit(self, request: Request, out: list[Output]) -> None:
        table = request.holdings.find(request.call.name)
        request.holdings.stepping.commit(table, request.call.step, request.call.generation, out)


def _name(table: Table) -> str:
    return table.name
