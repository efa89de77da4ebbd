"""Handles first values, and updates of the modes async and ssp, from PUSH to RECEIPT.

Laws:

- T11: `marks.py`.
- T18: a gradient that is not finite is refused before anything is changed. So is one of LIMIT or
  more: its square is not finite, and the sums of squares of Adagrad and Adam would never recover.
"""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import (
    Applied,
    Close,
    Fill,
    Filled,
    Free,
    Inspect,
    Inspected,
    Log,
    Output,
    TableEffect,
)
from reducer.core.tables import frames
from reducer.core.tables.chain import Chain, Durable
from reducer.core.tables.context import Context
from reducer.core.tables.marks import Mark
from reducer.core.tables.reads import Reads
from reducer.core.tables.shard import Shard
from reducer.core.tables.table import Table
from reducer.core.tables.workers import Seat
from reducer.core.tables.works import Sequel
from reducer.wire.codes import Entry, Flag, Outcome
from reducer.wire.errors import ProtocolError, StaleBaseError
from reducer.wire.header import Header

LIMIT: Final = 2.0**63
_MAX_U32: Final = (1 << 32) - 1
VALUES: Final = int(Flag.VALUES)
_APPLIED: Final = int(Outcome.APPLIED)
_DROPPED: Final = int(Outcome.DROPPED)
_REFUSED: Final = int(Outcome.REFUSED)


class Update:
    """A PUSH in flight."""

    __slots__ = (
        "base", "buffer", "confirmed", "crc", "mark", "seat", "seq", "shard", "size", "table",
    )  # fmt: skip

    def __init__(
        self, table: Table, shard: Shard, seat: Seat, mark: Mark, header: Header, buffer: Buffer
    ) -> None:
        self.table = table
        self.shard = shard
        self.seat = seat
        self.mark = mark
        self.seq = header.round
        self.base = header.count
        self.confirmed = header.done
        self.size = header.length
        self.crc = header.payload_crc
        self.buffer = buffer

    def entry(self, kind: int, version: int, staleness: int) -> Header:
        """The head of the entry for the log, without a payload."""
        return Header(
            0, flags=kind, rank=self.seat.worker, epoch=min(staleness, _MAX_U32),
            chunk=self.shard.number, key=self.table.key, round=self.seq, count=version,
            done=self.confirmed,
        )  # fmt: skip


class Updates:
    """Takes complete PUSH frames."""

    def __init__(self, context: Context, reads: Reads, chain: Chain) -> None:
        self._context = context
        self._reads = reads
        self._chain = chain

    # --- first values ---------------------------------------------------------------------------

    def wants_values(self, table: Table, shard: Shard, header: Header) -> bool:
        """Whether the lane lacks this array. Raises ProtocolError if there is no such array."""
        if header.root > len(shard.slots):
            raise ProtocolError(
                f"array {header.root} of table {table.name!r}, which has {1 + len(shard.slots)}"
            )
        if header.root:
            return shard.slots[header.root - 1] is None and shard.parameters is None
        return shard.parameters is None

    def take_values(
        self,
        table: Table,
        shard: Shard,
        seat: Seat,
        header: Header,
        buffer: Buffer | None,
        now: float,
        out: list[Output],
    ) -> None:
        seat.unanswered -= header.length
        then = _Kept(self, table, shard, seat, header.round)
        if buffer is None or not self.wants_values(table, shard, header):
            if buffer is not None:
                out.append(Free(0, (buffer,)))
            then.durable(now, out)
            return
        self.keep_values(shard, header.root, buffer, header.count)
        then.is_last = header.root == 0
        entry = Header(
            0, flags=int(Entry.VALUES), root=header.root, chunk=shard.number, key=table.key,
            count=header.count, length=header.length, payload_crc=header.payload_crc,
        )  # fmt: skip
        self._chain.data(entry, buffer, (), then, now, out)

    def keep_values(self, shard: Shard, root: int, buffer: Buffer, version: int) -> None:
        if root:
            shard.slots[root - 1] = buffer
        else:
            shard.parameters = buffer
            shard.version = shard.logged = version

    def kept(
        self,
        table: Table,
        shard: Shard,
        seat: Seat,
        seq: int,
        is_last: bool,
        now: float,
        out: list[Output],
    ) -> None:
        """The values are durable; `is_last`: they are the parameters, which come last."""
        if is_last:
            self.fill(table, shard, now, out)
        out.append(self._receipt(table, shard, seat, seq, (_APPLIED, shard.version, 0)))

    def fill(self, table: Table, shard: Shard, now: float, out: list[Output]) -> None:
        """Fill the slots without sent first values with the optimizer's initial values."""
        initials = tuple(
            [
                initial
                for initial, slot in zip(table.spec.slots, shard.slots, strict=True)
                if slot is None
            ]
        )
        if not initials:
            self.ready(table, shard, now, out)
            return
        work = self._context.works.begin(_Filled(self, table, shard))
        out.append(Fill(work, shard.count, initials))

    def ready(self, table: Table, shard: Shard, now: float, out: list[Output]) -> None:
        shard.has_slots = True
        table.unready -= 1
        table.committed = shard.version
        if table.owner is not None:
            table.owner.begin_at(shard.version + 1)
        self._reads.look(table, shard, out)
        if table.is_ready:
            news = table.described("table")
            out.append(frames.notice(news, table.workers.sessions(), self._context.crc))

    # --- updates --------------------------------------------------------------------------------

    def wants_update(self, table: Table, shard: Shard, seat: Seat, header: Header) -> bool:
        """Whether the update is new. Raises ProtocolError for a gap, and for a base that the shard
        has not reached.
        """
        seq, base = header.round, header.count
        if not shard.is_ready:
            raise ProtocolError(f"{_what(table, shard, seat, seq)}, which has no values yet")
        last = shard.mark_of(seat.worker).last
        if seq <= last:
            return False
        if seq != last + 1:
            raise ProtocolError(
                f"{_what(table, shard, seat, seq)}, which has seen the worker's updates up to "
                f"{last}: expected {last + 1}"
            )
        if base > shard.version:
            raise StaleBaseError(
                f"{_what(table, shard, seat, seq)} from version {base}, and the shard is at "
                f"version {shard.version}: was the table restored? Pull its parameters first"
            )
        return True

    def take_update(
        self,
        table: Table,
        shard: Shard,
        seat: Seat,
        header: Header,
        buffer: Buffer | None,
        out: list[Output],
    ) -> None:
        mark = shard.mark_of(seat.worker)
        mark.confirm(header.done)
        if buffer is None:
            seat.unanswered -= header.length
            answer = mark.answer_of(header.round)
            if answer is not None:
                out.append(self._receipt(table, shard, seat, header.round, answer))
            return
        mark.take(header.round)
        update = Update(table, shard, seat, mark, header, buffer)
        work = self._context.works.begin(_Inspected(self, update))
        out.append(Inspect(work, shard.count, buffer, LIMIT))

    def inspected(self, update: Update, is_within: bool, now: float, out: list[Output]) -> None:
        table, shard = update.table, update.shard
        staleness = shard.logged - update.base
        bound = table.spec.call.bound if table.spec.call.mode == "async" else -1
        if not is_within:
            self._decide(update, _REFUSED, staleness, now, out)
            text = f"table {table.name!r}: an update of {update.seat} is not finite: refused"
            out.append(Log(0, logging.WARNING, text, {"worker": update.seat.worker}))
            return
        if 0 <= bound < staleness:
            self._decide(update, _DROPPED, staleness, now, out)
            return
        shard.logged += 1
        scalars = table.scalars(shard.logged, table.rate)
        entry = update.entry(int(Entry.UPDATE), shard.logged, staleness)
        entry.length, entry.payload_crc = update.size, update.crc
        then = _Logged(self, update, staleness, scalars)
        self._chain.data(entry, update.buffer, scalars, then, now, out)

    def _decide(
        self, update: Update, outcome: int, staleness: int, now: float, out: list[Output]
    ) -> None:
        """The update changes nothing."""
        entry = update.entry(int(Entry.OUTCOME), update.shard.logged, staleness)
        entry.op = outcome
        self._chain.data(entry, None, (), _Decided(self, update, outcome, staleness), now, out)

    def logged(
        self, update: Update, staleness: int, scalars: tuple[float, ...], out: list[Output]
    ) -> None:
        """The update is durable."""
        shard = update.shard
        work = self._context.works.begin(_Applied(self, update, staleness))
        rule = int(update.table.spec.optimizer.rule)
        out.append(shard.apply(work, rule, update.buffer, scalars))

    def applied(self, update: Update, staleness: int, is_finite: bool, out: list[Output]) -> None:
        update.shard.version += 1
        self.end(update, _APPLIED, staleness, out)
        if not is_finite:
            self._note_spoilt(update, out)

    def end(self, update: Update, outcome: int, staleness: int, out: list[Output]) -> None:
        """Answer the update."""
        table, shard, seat = update.table, update.shard, update.seat
        answer = (outcome, shard.version, staleness)
        table.counts.count(outcome, staleness)
        update.mark.answer(update.seq, answer)
        seat.unanswered -= update.size
        out.append(Free(0, (update.buffer,)))
        worker = table.workers.find(seat.worker)
        if worker is not None and worker.seat is not None:  # perhaps a newer connection
            out.append(self._receipt(table, shard, worker.seat, update.seq, answer))
        self._reads.look(table, shard, out)

    def undo(self, update: Update, error: Exception, out: list[Output]) -> None:
        """A kernel has failed and has changed nothing: the worker connects and sends again."""
        update.mark.take(update.seq - 1)
        update.seat.unanswered -= update.size
        text = f"table {update.table.name!r}: an update has failed: {error}"
        out += [
            Free(0, (update.buffer,)),
            Log(0, logging.ERROR, text, error=error),
            Close(0, update.seat.session, text, at_once=True),
        ]

    def _note_spoilt(self, update: Update, out: list[Output]) -> None:
        counts = update.table.counts
        counts.spoilt += 1
        if counts.spoilt == 1:
            text = (
                f"table {update.table.name!r} shard {update.shard.number}: after an update of "
                f"{update.seat} a parameter or a slot is not finite: the learning rate may be too "
                "large; load the last checkpoint"
            )
            out.append(Log(0, logging.ERROR, text, {"worker": update.seat.worker}))

    def _receipt(
        self, table: Table, shard: Shard, seat: Seat, seq: int, answer: tuple[int, int, int]
    ) -> Output:
        outcome, version, staleness = answer
        return frames.receipt(
            seat.session, self._context.crc, table.key, shard.number, seq, outcome, version,
            staleness,
        )  # fmt: skip


def _what(table: Table, shard: Shard, seat: Seat, seq: int) -> str:
    return f"{seat} sent update {seq} of table {table.name!r} shard {shard.number}"


class _Kept(Durable):
    def __init__(self, updates: Updates, table: Table, shard: Shard, seat: Seat, seq: int) -> None:
        self._updates = updates
        self._table = table
        self._shard = shard
        self._seat = seat
        self._seq = seq
        self.is_last = False

    def durable(self, now: float, out: list[Output]) -> None:
        self._updates.kept(self._table, self._shard, self._seat, self._seq, self.is_last, now, out)


class _Logged(Durable):
    def __init__(
        self, updates: Updates, update: Update, staleness: int, scalars: tuple[float, ...]
    ) -> None:
        self._updates = updates
        self._update = update
        self._staleness = staleness
        self._scalars = scalars

    def durable(self, now: float, out: list[Output]) -> None:
        self._updates.logged(self._update, self._staleness, self._scalars, out)

    def buffers(self) -> list[Buffer]:
        return [self._update.buffer]


class _Decided(Durable):
    def __init__(self, updates: Updates, update: Update, outcome: int, staleness: int) -> None:
        self._updates = updates
        self._update = update
        self._outcome = outcome
        self._staleness = staleness

    def durable(self, now: float, out: list[Output]) -> None:
        self._updates.end(self._update, self._outcome, self._staleness, out)

    def buffers(self) -> list[Buffer]:
        return [self._update.buffer]


class _Filled(Sequel):
    def __init__(self, updates: Updates, table: Table, shard: Shard) -> None:
        self._updates = updates
        self._table = table
        self._shard = shard

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Filled)
        missing = [i for i, slot in enumerate(self._shard.slots) if slot is None]
        for place, buffer in zip(missing, event.buffers, strict=True):
            self._shard.slots[place] = buffer
        self._updates.ready(self._table, self._shard, now, out)

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        if self._shard.parameters is not None:  # the next values try again
            out.append(Free(0, (self._shard.parameters,)))
            self._shard.parameters = None
        text = f"table {self._table.name!r}: no memory for its slots: {error}"
        out.append(Log(0, logging.ERROR, text, error=error))


class _Inspected(Sequel):
    def __init__(self, updates: Updates, update: Update) -> None:
        self._updates = updates
        self._update = update

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Inspected)
        self._updates.inspected(self._update, event.is_within, now, out)

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        self._updates.undo(self._update, error, out)


class _Applied(Sequel):
    def __init__(self, updates: Updates, update: Update, staleness: int) -> None:
        self._updates = updates
        self._update = update
        self._staleness = staleness

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Applied)
        self._updates.applied(self._update, self._staleness, event.is_finite, out)

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        raise error  # a bug: this kernel takes no memory
