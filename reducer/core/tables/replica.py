"""The backup's side of a log: takes the entries of the primary and carries them out.

Laws:

- T12: an entry is acknowledged when it is in this lane's memory; entries are carried out in order.
- T17: the scalars of a step come with its entry, so the backup does not compute them again.
"""

from __future__ import annotations

import struct
from typing import Final

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Applied, Free, Output, Send, TableEffect
from reducer.core.tables.context import Context
from reducer.core.tables.owner import StepSet
from reducer.core.tables.partition import Partition
from reducer.core.tables.shard import Shard
from reducer.core.tables.table import Table
from reducer.core.tables.works import Sequel
from reducer.wire.codes import SCALARS_BYTES, Entry, MessageKind, Outcome
from reducer.wire.errors import BadFrameError, IntegrityError, ProtocolError
from reducer.wire.header import NO_RANK, Header, pack_header
from reducer.wire.messages import decode
from reducer.wire.table_messages import TableCall

_CALL: Final = int(Entry.CALL)
_VALUES: Final = int(Entry.VALUES)
_UPDATE: Final = int(Entry.UPDATE)
_OUTCOME: Final = int(Entry.OUTCOME)
_MEAN: Final = int(Entry.MEAN)
_LOGGED: Final = int(MessageKind.LOGGED)


class Replica:
    """`position`: the position of the last entry. `session`: the primary's link. `primary`: the
    primary's incarnation. `begun`: the term in which the log began.
    """

    def __init__(self, context: Context, partition: Partition, primary: bytes, begun: int) -> None:
        self.position = 0
        self.session = 0
        self.primary = primary
        self.begun = begun
        self._context = context
        self._partition = partition

    def admit(self, header: Header) -> bool:
        """Whether the entry is new. Raises ProtocolError if it does not belong to a table here."""
        if header.stable <= self.position:
            return False
        if header.stable != self.position + 1:
            raise ProtocolError(
                f"entry {header.stable} of a log came, expected {self.position + 1}"
            )
        kind = header.flags
        if kind == _CALL:
            return True
        _, shard = self._place(header)
        expected = {_VALUES: shard.size, _UPDATE: shard.size + SCALARS_BYTES, _MEAN: shard.size}
        if header.length != expected.get(kind, -1):
            raise ProtocolError(
                f"entry {header.stable} of a log, of kind {kind}, has {header.length:,} bytes for "
                f"a shard of {shard.size:,}"
            )
        return True

    def take(self, header: Header, buffer: Buffer | None, now: float, out: list[Output]) -> None:
        """Take an entry. After a ProtocolError the caller owns the buffer, as before."""
        if buffer is None and header.length == 0:
            self.admit_outcome(header)
        if header.stable > self.position:
            self._take(header, buffer, now, out)
            self.position = header.stable
        ack = Header(_LOGGED, round=self.position, route=header.route)
        frame = pack_header(ack, self._context.crc)
        out.append(Send(0, (self.session,), frame, None, 0))

    def admit_outcome(self, header: Header) -> None:
        if header.flags != _OUTCOME:
            raise ProtocolError(f"an entry of kind {header.flags} without a payload")
        if header.stable > self.position + 1:
            raise ProtocolError(
                f"entry {header.stable} of a log came, expected {self.position + 1}"
            )

    def _take(self, header: Header, buffer: Buffer | None, now: float, out: list[Output]) -> None:
        kind = header.flags
        if kind == _OUTCOME:
            self._outcome(header)
        elif buffer is None:
            raise ProtocolError("an entry of a log was discarded")
        elif kind == _CALL:
            call = decode(TableCall, buffer.view[: header.length])
            self._call(call, header.rank, now, out)
            out.append(Free(0, (buffer,)))
        elif kind == _VALUES:
            table, shard = self._place(header)
            self._partition.updates.keep_values(shard, header.root, buffer, header.count)
            if not header.root:
                self._partition.updates.fill(table, shard, now, out)
        elif kind == _UPDATE:
            self._update(header, buffer, out)
        else:
            self._mean(header, buffer, out)

    def _place(self, header: Header) -> tuple[Table, Shard]:
        table = self._partition.by_key.get(header.key)
        shard = None if table is None else table.shards.get(header.chunk)
        if table is None or shard is None:
            raise ProtocolError(
                f"a log is about shard {header.chunk} of table {header.key:#x}, which is not here"
            )
        return table, shard

    # --- entries --------------------------------------------------------------------------------

    def _outcome(self, header: Header) -> None:
        _, shard = self._place(header)
        mark = shard.mark_of(header.rank)
        mark.restore(header.round)
        mark.confirm(header.done)
        if header.op:
            mark.answer(header.round, (header.op, header.count, header.epoch))

    def _update(self, header: Header, buffer: Buffer, out: list[Output]) -> None:
        table, shard = self._place(header)
        if not shard.is_ready or header.count != shard.logged + 1:
            raise IntegrityError(
                f"the log has version {header.count} of shard {shard.number} of table "
                f"{table.name!r}, and the backup has version {shard.logged}"
            )
        shard.logged = header.count
        mark = shard.mark_of(header.rank)
        mark.restore(header.round)
        mark.confirm(header.done)
        mark.answer(header.round, (int(Outcome.APPLIED), header.count, header.epoch))
        self._apply(table, shard, buffer, (), out)

    def _mean(self, header: Header, buffer: Buffer, out: list[Output]) -> None:
        table, shard = self._place(header)
        sums = table.steps
        chosen = None if sums is None else sums.chosen
        if sums is None or chosen is None:
            raise ProtocolError(f"a mean of table {table.name!r} came before its set")
        if (header.round, header.epoch) != (chosen.step, chosen.generation):
            out.append(Free(0, (buffer,)))  # of a set that another has replaced
            return
        before = sums.means.get(shard.number)
        if before is not None:
            out.append(Free(0, (before,)))
        sums.means[shard.number] = buffer

    def _call(self, call: TableCall, worker: int, now: float, out: list[Output]) -> None:
        partition = self._partition
        if call.call == "table":
            partition.restore(call, worker, out)
        elif call.call == "open":
            partition.seal(worker, call.incarnation)
        elif call.call == "drop":
            partition.drop(partition.find(call.name), out)
        elif call.call == "clock":
            self._clock(partition.find(call.name), call, worker)
        elif call.call == "rate":
            partition.find(call.name).set_rate(call.rate, call.number)
        elif call.call == "set":
            self._set(partition.find(call.name), call, out)
        elif call.call == "commit":
            self._commit(partition.find(call.name), call, out)
        else:
            raise BadFrameError(f"a log has the call {call.call}")

    def _clock(self, table: Table, call: TableCall, worker: int) -> None:
        if table.clocks is None:
            return
        if worker == NO_RANK:
            table.clocks.restore_all(call.clock, call.number)
        else:
            table.clocks.restore(worker, call.clock)

    def _set(self, table: Table, call: TableCall, out: list[Output]) -> None:
        if table.steps is None:
            raise ProtocolError(f"a log has a set of table {table.name!r}, which has no steps")
        rate = None if call.rate < 0 else call.rate
        discarded = table.steps.choose(_set_of(call), rate)
        if discarded:
            out.append(Free(0, tuple(discarded)))

    def _commit(self, table: Table, call: TableCall, out: list[Output]) -> None:
        if table.steps is None:
            raise ProtocolError(f"a log has a commit of table {table.name!r}, without steps")
        chosen = _set_of(call)
        table.committed = chosen.step
        if table.owner is not None:
            table.owner.restore(chosen)
        table.steps.last_in.update(dict.fromkeys(chosen.members, chosen.step))
        means, parts = table.steps.end()
        spare = tuple([part for of_shard in parts.values() for part in of_shard.values()])
        if spare:
            out.append(Free(0, spare))
        count = len(call.scalars) // 4
        scalars: tuple[float, ...] = struct.unpack(f"<{count}f", call.scalars[: 4 * count])
        for number, mean in means.items():
            shard = table.shards[number]
            shard.logged = chosen.step
            self._apply(table, shard, mean, scalars, out)

    def _apply(
        self,
        table: Table,
        shard: Shard,
        gradient: Buffer,
        scalars: tuple[float, ...],
        out: list[Output],
    ) -> None:
        work = self._context.works.begin(_Applied(shard, gradient, shard.logged))
        rule = int(table.spec.optimizer.rule)
        out.append(shard.apply(work, rule, gradient, scalars))


def _set_of(call: TableCall) -> StepSet:
    return StepSet(call.step, call.generation, call.members, call.weights)


class _Applied(Sequel):
    def __init__(self, shard: Shard, gradient: Buffer, version: int) -> None:
        self._shard = shard
        self._gradient = gradient
        self._version = version

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Applied)
        self._shard.version = self._version
        out.append(Free(0, (self._gradient,)))

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        raise error  # a bug: this kernel takes no memory
