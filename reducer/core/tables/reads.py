"""Answers pulls, at once or when the shard has what the pull waits for.

Laws:

- T16: a read at clock c of a table with the bound s waits until the minimum of the clocks is c - s
  or more. The worker names c - s.
- A worker reads its own updates. With a backup an update waits for the log, and so does a pull of
  its worker behind it.
"""

from __future__ import annotations

from reducer.core.surface.events import Output
from reducer.core.tables import frames
from reducer.core.tables.shard import Shard, WaitingPull
from reducer.core.tables.table import Table
from reducer.core.tables.workers import Seat
from reducer.wire.codes import Flag
from reducer.wire.errors import ProtocolError
from reducer.wire.header import Header

ALL = int(Flag.ALL)
EXACT = int(Flag.EXACT)


class Reads:
    """Takes PULL frames."""

    def pull(
        self, table: Table, shard: Shard, seat: Seat, header: Header, out: list[Output]
    ) -> None:
        """Raises ProtocolError if the answer would exceed the connection's credit."""
        is_exact = bool(header.flags & EXACT)
        has_slots = bool(header.flags & ALL) and not is_exact
        cost = shard.size * (1 + len(shard.slots) if has_slots else 1)
        if seat.unanswered and seat.unanswered + cost > seat.credit:
            raise ProtocolError(
                f"{seat} asks for {cost:,} bytes with {seat.unanswered:,} bytes unanswered; its "
                f"credit is {seat.credit:,}"
            )
        seat.unanswered += cost
        mark = shard.marks.get(seat.worker)
        seq = 0 if mark is None else mark.last
        pull = WaitingPull(
            seat, header.round, header.count, header.done, has_slots, is_exact, cost, seq
        )
        if self._may_answer(table, shard, pull):
            self._answer(table, shard, pull, out)
        else:
            shard.pulls.append(pull)

    def look(self, table: Table, shard: Shard, out: list[Output]) -> None:
        """Answer the waiting pulls of the shard that may be answered now."""
        if not shard.pulls:
            return
        waiting, shard.pulls = shard.pulls, []
        for pull in waiting:
            if self._may_answer(table, shard, pull):
                self._answer(table, shard, pull, out)
            else:
                shard.pulls.append(pull)

    def forget(self, table: Table, seat: Seat) -> None:
        """The connection has ended."""
        for shard in table.shards.values():
            if shard.pulls:
                shard.pulls = [pull for pull in shard.pulls if pull.seat is not seat]

    def _may_answer(self, table: Table, shard: Shard, pull: WaitingPull) -> bool:
        if not shard.is_ready or shard.version < pull.version or table.least_clock < pull.clock:
            return False
        mark = shard.marks.get(pull.seat.worker)
        return mark is None or mark.decided >= pull.seq

    def _answer(self, table: Table, shard: Shard, pull: WaitingPull, out: list[Output]) -> None:
        seat, version = pull.seat, shard.version
        arrays = shard.arrays() if pull.has_slots else shard.arrays()[:1]
        exact = shard.array_of(pull.version) if pull.is_exact else None
        if exact is not None:
            arrays, version = [exact], pull.version
        for array, buffer in enumerate(arrays):
            frame = frames.value(
                seat.session, table.key, shard.number, pull.number, array, version,
                table.least_clock, buffer, shard.size,
            )  # fmt: skip
            out.append(frame)
        table.counts.bytes_out += pull.cost
        seat.unanswered -= pull.cost
