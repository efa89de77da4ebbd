"""Steps of a table on this lane: contributions in, means, and the commit.

Laws:

- T14: every shard of every lane applies the mean of one set, or none of it. A lane computes the
  means of a set, reports that it has them, and applies them when the owner has committed the set.
- A mean is a pure function of the set: parts are summed in the order of workers, and divided once.
- Contributions are kept until the commit: another generation discards means only.
"""

from __future__ import annotations

import logging
import struct

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.control_frames import control_frame
from reducer.core.surface.events import (
    Applied,
    Average,
    Averaged,
    Close,
    Free,
    Inspect,
    Inspected,
    Log,
    Output,
    Send,
    TableEffect,
)
from reducer.core.tables import frames
from reducer.core.tables.chain import Chain, Durable
from reducer.core.tables.context import Context
from reducer.core.tables.owner import StepSet
from reducer.core.tables.reads import Reads
from reducer.core.tables.shard import Shard
from reducer.core.tables.step import StepSums
from reducer.core.tables.table import Table
from reducer.core.tables.updates import LIMIT
from reducer.core.tables.workers import Seat
from reducer.core.tables.works import Sequel
from reducer.wire import messages
from reducer.wire.codes import Entry, ErrorCode, Outcome
from reducer.wire.errors import ProtocolError, StaleBaseError
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice, TableCall

_APPLIED = int(Outcome.APPLIED)
_DROPPED = int(Outcome.DROPPED)
_HELD = int(Outcome.HELD)
NO_WORKER = -1
_REFUSED = int(Outcome.REFUSED)


class Stepping:
    """Takes contributions to steps, and the calls `enter`, `set`, `folded` and `commit`."""

    def __init__(self, context: Context, reads: Reads, chain: Chain, job: str) -> None:
        self._context = context
        self._job = job
        self._is_traced = context.settings.traced
        self._reads = reads
        self._chain = chain

    # --- contributions --------------------------------------------------------------------------

    def wants(self, table: Table, shard: Shard, seat: Seat, header: Header) -> bool:
        """Whether the contribution is new, and of the open step."""
        where = f"table {table.name!r} shard {shard.number}"
        if not shard.is_ready:
            raise ProtocolError(f"{seat} contributes to {where}, which has no values yet")
        if header.round > table.committed + 1:
            raise StaleBaseError(
                f"{seat} contributes to step {header.round} of {where}, which is at step "
                f"{table.committed + 1}: was the table restored? Pull its parameters first"
            )
        if seat.worker not in table.contributors:
            raise ProtocolError(f"{seat} contributes to {where} and has not described the table")
        return header.round > table.committed and not _sums(table).has(shard.number, seat.worker)

    def take(
        self,
        table: Table,
        shard: Shard,
        seat: Seat,
        header: Header,
        buffer: Buffer | None,
        out: list[Output],
    ) -> None:
        seat.unanswered -= header.length
        step = header.round
        if step <= table.committed:
            was_in = _sums(table).last_in.get(seat.worker) == step
            self._answer(table, shard, seat, step, _APPLIED if was_in else _DROPPED, out)
            if buffer is not None:
                out.append(Free(0, (buffer,)))
        elif buffer is None:
            self._answer(table, shard, seat, step, _HELD, out)
        else:
            work = self._context.works.begin(_Inspected(self, table, shard, seat, buffer, step))
            out.append(Inspect(work, shard.count, buffer, LIMIT))

    def inspected(
        self,
        table: Table,
        shard: Shard,
        seat: Seat,
        buffer: Buffer,
        step: int,
        is_within: bool,
        now: float,
        out: list[Output],
    ) -> None:
        if not is_within:
            table.counts.count(_REFUSED, 0)
            text = (
                f"{seat} contributed values to step {step} of table {table.name!r} that are not "
                "finite, or 2^63 or more"
            )
            error = messages.Error(int(ErrorCode.NUMERIC), text, seat.worker)
            frame = control_frame(error, self._context.crc)
            out += [
                Free(0, (buffer,)),
                Log(0, logging.WARNING, text),
                Send(0, (seat.session,), frame, None, 0),
                Close(0, seat.session, text),
            ]
            return
        if table.owner is not None and table.watch is not None and self._is_traced:
            table.watch.heard(table.owner, seat.worker, now)
        _sums(table).keep(shard.number, seat.worker, buffer)
        self._answer(table, shard, seat, step, _HELD, out)
        self._maybe_average(table, shard, out)

    # --- sets -----------------------------------------------------------------------------------

    def enter(
        self, table: Table, seat: Seat, call: TableCall, now: float, out: list[Output]
    ) -> None:
        """A worker has its gradient. Workers tell the owner alone. Raises ProtocolError."""
        owner = table.owner
        if owner is None:
            raise ProtocolError(f"this lane does not decide the steps of table {table.name!r}")
        decided = owner.enter(seat.worker, call.step, call.weight)
        if decided is not None and table.watch is not None:
            table.watch.entered(owner, seat.worker, now)
        if decided is None:
            self._say(table, "late", call.step, 0, (seat.session,), out)
        elif decided:
            self.announce(table, now, out)

    def announce(self, table: Table, now: float, out: list[Output]) -> None:
        """Tell all workers the new set, and this lane as well."""
        owner = table.owner
        assert owner is not None and owner.set is not None
        chosen = owner.set
        out.append(self._news("set", table, chosen, table.workers.sessions()))
        late = [table.workers.find(worker) for worker in owner.late()]
        sessions = tuple([w.seat.session for w in late if w is not None and w.seat is not None])
        if sessions:
            self._say(table, "late", chosen.step, chosen.generation, sessions, out)
        self._choose(table, chosen, table.rate, now, out)

    def _news(self, call: str, table: Table, chosen: StepSet, sessions: tuple[int, ...]) -> Output:
        news = Notice(
            call=call, name=table.name, step=chosen.step, generation=chosen.generation,
            members=chosen.members, weights=chosen.weights,
            rate=-1.0 if table.rate is None else table.rate,
        )  # fmt: skip
        return frames.notice(news, sessions, self._context.crc)

    def set_of(self, table: Table, call: TableCall, now: float, out: list[Output]) -> None:
        """A worker passes the owner's set on."""
        if not call.members or len(call.members) != len(call.weights):
            raise ProtocolError(
                f"a set of table {table.name!r} has {len(call.members)} members and "
                f"{len(call.weights)} weights"
            )
        chosen = StepSet(call.step, call.generation, call.members, call.weights)
        if call.step == table.committed + 1 and _sums(table).is_newer(chosen):
            self._choose(table, chosen, None if call.rate < 0 else call.rate, now, out)

    def _choose(
        self, table: Table, chosen: StepSet, rate: float | None, now: float, out: list[Output]
    ) -> None:
        self._chain.call(set_call(table, chosen, rate), NO_WORKER, None, now, out)
        discarded = _sums(table).choose(chosen, rate)
        if discarded:
            out.append(Free(0, tuple(discarded)))
        for shard in table.shards.values():
            self._maybe_average(table, shard, out)
        self.maybe_tell(table, table.workers.sessions(), out)

    def _maybe_average(self, table: Table, shard: Shard, out: list[Output]) -> None:
        sums = _sums(table)
        parts = sums.due(shard.number)
        if not parts:
            return
        assert sums.chosen is not None
        sums.pending.add(shard.number)
        sequel = _Averaged(self, table, shard, sums.chosen)
        work = self._context.works.begin(sequel)
        out.append(Average(work, shard.count, sum(sums.chosen.weights), tuple(parts)))

    def averaged(
        self,
        table: Table,
        shard: Shard,
        chosen: StepSet,
        event: Averaged,
        now: float,
        out: list[Output],
    ) -> None:
        if not event.is_finite:
            text = f"table {table.name!r} step {chosen.step}: the mean is not finite"
            out.append(Log(0, logging.WARNING, text))
        entry = Header(
            0, flags=int(Entry.MEAN), chunk=shard.number, key=table.key, round=chosen.step,
            epoch=chosen.generation, length=shard.size, payload_crc=event.crc,
        )  # fmt: skip
        then = _Folded(self, table, shard, chosen, event.buffer)
        self._chain.data(entry, event.buffer, (), then, now, out)

    def keep_mean(
        self, table: Table, shard: Shard, chosen: StepSet, mean: Buffer, out: list[Output]
    ) -> None:
        """The mean is durable."""
        sums = _sums(table)
        if sums.chosen is not chosen or shard.number not in sums.pending:
            out.append(Free(0, (mean,)))  # a newer set came between
            return
        sums.pending.discard(shard.number)
        sums.means[shard.number] = mean
        self.maybe_tell(table, table.workers.sessions(), out)

    def maybe_tell(self, table: Table, sessions: tuple[int, ...], out: list[Output]) -> None:
        """Tell the workers that all shards of this lane have their means, if so."""
        sums = _sums(table)
        chosen = sums.chosen
        if chosen is None or chosen.step != table.committed + 1:
            return
        if len(sums.means) == len(table.shards):
            self._say(table, "folded", chosen.step, chosen.generation, sessions, out)

    # --- commit ---------------------------------------------------------------------------------

    def folded(self, table: Table, call: TableCall, now: float, out: list[Output]) -> None:
        """A worker knows that all lanes have folded the set."""
        owner = table.owner
        if owner is None:
            raise ProtocolError(f"this lane does not decide the steps of table {table.name!r}")
        if owner.commit(call.step, call.generation):
            assert owner.last is not None and table.watch is not None
            table.watch.committed(owner, self._job, now, self._is_traced, out)
            self.commit(table, call.step, call.generation, now, out)

    def commit(
        self, table: Table, step: int, generation: int, now: float, out: list[Output]
    ) -> None:
        """Log the commit, and apply the means when it is durable.

        Raises ProtocolError if this lane has not folded the set.
        """
        if step <= table.committed:
            return
        sums = _sums(table)
        chosen = sums.chosen
        if (
            chosen is None
            or (chosen.step, chosen.generation) != (step, generation)
            or len(sums.means) != len(table.shards)
        ):
            raise ProtocolError(
                f"step {step}.{generation} of table {table.name!r} is committed, and this lane has "
                "not folded it"
            )
        scalars = table.scalars(step, sums.learning_rate)
        means, parts = self.close(table, chosen)
        call = commit_call(table, chosen, scalars)
        then = _Committed(self, table, chosen, means, parts, scalars)
        self._chain.call(call, NO_WORKER, then, now, out)

    def close(
        self, table: Table, chosen: StepSet
    ) -> tuple[dict[int, Buffer], dict[int, dict[int, Buffer]]]:
        """The set is committed. Returns the means and the contributions of its step."""
        table.committed = chosen.step
        return _sums(table).end()

    def committed(
        self,
        table: Table,
        chosen: StepSet,
        means: dict[int, Buffer],
        parts: dict[int, dict[int, Buffer]],
        scalars: tuple[float, ...],
        out: list[Output],
    ) -> None:
        """The commit is durable."""
        if table.owner is not None:
            out.append(self._news("commit", table, chosen, table.workers.sessions()))
        rule = int(table.spec.optimizer.rule)
        for number, mean in means.items():
            shard = table.shards[number]
            sequel = _Applied(self, table, shard, chosen, mean, parts.get(number, {}))
            work = self._context.works.begin(sequel)
            out.append(shard.apply(work, rule, mean, scalars))

    def applied(
        self,
        table: Table,
        shard: Shard,
        chosen: StepSet,
        mean: Buffer,
        parts: dict[int, Buffer],
        is_finite: bool,
        out: list[Output],
    ) -> None:
        step = chosen.step
        shard.version = shard.logged = step
        out.append(Free(0, (mean, *parts.values())))
        for number in parts:
            outcome = _APPLIED if number in chosen.members else _DROPPED
            table.counts.count(outcome, 0)
            worker = table.workers.find(number)
            if worker is not None and worker.seat is not None:
                session = worker.seat.session
                out.append(self._receipt(table, shard, session, step, outcome, step))
        if not is_finite:
            table.counts.spoilt += 1
            text = f"table {table.name!r}: after step {step} a parameter or a slot is not finite"
            out.append(Log(0, logging.ERROR, text))
        self._reads.look(table, shard, out)

    # --- workers --------------------------------------------------------------------------------

    def greet(self, table: Table, seat: Seat, now: float, out: list[Output]) -> None:
        """Tell a worker that has connected where the step stands. It may be the last founder."""
        owner, only = table.owner, (seat.session,)
        if owner is not None:
            if owner.last is not None:
                out.append(self._news("commit", table, owner.last, only))
            if owner.set is not None:
                out.append(self._news("set", table, owner.set, only))
            elif owner.decide():
                self.announce(table, now, out)
        self.maybe_tell(table, only, out)

    def leave(self, table: Table, worker: int, now: float, out: list[Output]) -> None:
        """The worker is lost, or has left."""
        if table.owner is not None and table.owner.leave(worker):
            self.announce(table, now, out)
        gone = _sums(table).forget(worker)
        if gone:
            out.append(Free(0, tuple(gone)))

    def _say(
        self,
        table: Table,
        call: str,
        step: int,
        generation: int,
        sessions: tuple[int, ...],
        out: list[Output],
    ) -> None:
        news = Notice(
            call=call, name=table.name, step=step, generation=generation,
            partition=table.spec.call.partition,
        )  # fmt: skip
        out.append(frames.notice(news, sessions, self._context.crc))

    def _answer(
        self,
        table: Table,
        shard: Shard,
        seat: Seat,
        step: int,
        outcome: int,
        out: list[Output],
    ) -> None:
        version = shard.version
        out.append(self._receipt(table, shard, seat.session, step, outcome, version))

    def _receipt(
        self, table: Table, shard: Shard, session: int, step: int, outcome: int, version: int
    ) -> Output:
        crc = self._context.crc
        return frames.receipt(session, crc, table.key, shard.number, step, outcome, version, 0)


def set_call(table: Table, chosen: StepSet, rate: float | None) -> TableCall:
    """The set as a call, for the log."""
    return TableCall(
        "set", name=table.name, step=chosen.step, generation=chosen.generation,
        members=chosen.members, weights=chosen.weights, rate=-1.0 if rate is None else rate,
    )  # fmt: skip


def commit_call(table: Table, chosen: StepSet, scalars: tuple[float, ...]) -> TableCall:
    """The commit of a set as a call, for the log."""
    return TableCall(
        "commit", name=table.name, step=chosen.step, generation=chosen.generation,
        members=chosen.members, weights=chosen.weights,
        scalars=struct.pack(f"<{len(scalars)}f", *scalars),
    )  # fmt: skip


def _sums(table: Table) -> StepSums:
    if table.steps is None:
        raise ProtocolError(f"table {table.name!r} has no steps: its mode is not step")
    return table.steps


class _Inspected(Sequel):
    def __init__(
        self,
        stepping: Stepping,
        table: Table,
        shard: Shard,
        seat: Seat,
        buffer: Buffer,
        step: int,
    ) -> None:
        self._stepping = stepping
        self._table = table
        self._shard = shard
        self._seat = seat
        self._buffer = buffer
        self._step = step

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Inspected)
        self._stepping.inspected(
            self._table,
            self._shard,
            self._seat,
            self._buffer,
            self._step,
            event.is_within,
            now,
            out,
        )

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        """The worker connects and sends again."""
        text = f"table {self._table.name!r}: a contribution has failed: {error}"
        out += [
            Free(0, (self._buffer,)),
            Log(0, logging.ERROR, text, error=error),
            Close(0, self._seat.session, text, at_once=True),
        ]


class _Averaged(Sequel):
    def __init__(self, stepping: Stepping, table: Table, shard: Shard, chosen: StepSet) -> None:
        self._stepping = stepping
        self._table = table
        self._shard = shard
        self._chosen = chosen

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Averaged)
        self._stepping.averaged(self._table, self._shard, self._chosen, event, now, out)

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        """The workers connect and send again, which tries again."""
        _sums(self._table).pending.discard(self._shard.number)
        text = f"table {self._table.name!r}: a mean has failed: {error}"
        out.append(Log(0, logging.ERROR, text, error=error))
        out += [Close(0, session, text, at_once=True) for session in self._table.workers.sessions()]


class _Folded(Durable):
    def __init__(
        self, stepping: Stepping, table: Table, shard: Shard, chosen: StepSet, mean: Buffer
    ) -> None:
        self._stepping = stepping
        self._table = table
        self._shard = shard
        self._chosen = chosen
        self._mean = mean

    def durable(self, now: float, out: list[Output]) -> None:
        self._stepping.keep_mean(self._table, self._shard, self._chosen, self._mean, out)

    def buffers(self) -> list[Buffer]:
        return [self._mean]


class _Committed(Durable):
    def __init__(
        self,
        stepping: Stepping,
        table: Table,
        chosen: StepSet,
        means: dict[int, Buffer],
        parts: dict[int, dict[int, Buffer]],
        scalars: tuple[float, ...],
    ) -> None:
        self._stepping = stepping
        self._table = table
        self._chosen = chosen
        self._means = means
        self._parts = parts
        self._scalars = scalars

    def durable(self, now: float, out: list[Output]) -> None:
        self._stepping.committed(
            self._table, self._chosen, self._means, self._parts, self._scalars, out
        )

    def buffers(self) -> list[Buffer]:
        parts = [part for of_shard in self._parts.values() for part in of_shard.values()]
        return [*self._means.values(), *parts]


class _Applied(Sequel):
    def __init__(
        self,
        stepping: Stepping,
        table: Table,
        shard: Shard,
        chosen: StepSet,
        mean: Buffer,
        parts: dict[int, Buffer],
    ) -> None:
        self._stepping = stepping
        self._table = table
        self._shard = shard
        self._chosen = chosen
        self._mean = mean
        self._parts = parts

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Applied)
        self._stepping.applied(
            self._table, self._shard, self._chosen, self._mean, self._parts, event.is_finite, out
        )

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        raise error  # a bug: this kernel takes no memory
