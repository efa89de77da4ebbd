"""One complete run of a job on one lane: contributions in, results out.

The run knows ranks, keys, rounds and credits; the lane above it knows sessions and members. Output
order matters: a buffer is freed only after the last output that reads it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from reducer.core.limits.budget import Window
from reducer.core.limits.held import HeldBytes
from reducer.core.limits.records import LIST_PLACE, MARK, RANK, ROUND, SLOT, Records
from reducer.core.measures.durations import Durations
from reducer.core.measures.lateness import Lateness
from reducer.core.measures.ranking import most
from reducer.core.rounds.admission import Plans, check_fields, check_length
from reducer.core.rounds.idle import IdleKeys
from reducer.core.rounds.keytable import KeyTable
from reducer.core.rounds.open_rounds import OpenRounds
from reducer.core.rounds.plan import Plan
from reducer.core.rounds.progress import KeyProgress
from reducer.core.rounds.round import Chunk, Descriptor, Phase, Round, Step
from reducer.core.rounds.route import Route
from reducer.core.rounds.stream import Stream, Streams
from reducer.core.rounds.texts import about, stall_entry, stall_text
from reducer.core.runs.debts import Debts
from reducer.core.runs.grants import Grants
from reducer.core.runs.ledger import Ledger
from reducer.core.runs.missed import Missed
from reducer.core.runs.passed import Passed
from reducer.core.runs.seats import Seats
from reducer.core.runs.verdicts import Verdicts
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import (
    Behind,
    Contributed,
    Finish,
    Fold,
    Folded,
    Free,
    Log,
    Output,
    Reduced,
    Send,
    Traced,
    Wait,
)
from reducer.wire import messages
from reducer.wire.codes import (
    ALL_REDUCE,
    COPY,
    ITEM_SIZES,
    MAX_CHUNKS,
    MAX_HEARTBEAT_ENTRIES,
    RESULT,
    DType,
    ReduceOp,
)
from reducer.wire.errors import IntegrityError, PeerLostError, ProtocolError, UnstableError
from reducer.wire.header import NO_RANK, Crc, Header, pack_header
from reducer.wire.keys import position, run_title

MAX_STALLS: Final = 16
# Parts that are folded in one pass, before the last has come: a pass for each would read and write
# the accumulator as often.
FOLD_AT_ONCE: Final = 4
# Streams that a route moves and that have no rounds: so many are dropped at once, 0.3 us each. A
# job has one for each reducer that is dead.
STREAMS_AT_ONCE: Final = 256
_FREE_DTYPE: Final = int(DType.FLOAT16)
_FREE_OPS: Final = frozenset((int(ReduceOp.SUM), int(ReduceOp.MEAN)))


@dataclass(slots=True)
class Counters:
    """Of one job on this lane; bytes are payload bytes."""

    bytes_in: int = 0
    bytes_out: int = 0
    contributions: int = 0
    results: int = 0
    duplicates: int = 0
    rounds: int = 0
    reconnects: int = 0
    failovers: int = 0
    stats_walks: int = 0
    stats_shared: int = 0


class Run:
    """The lane keeps `seats`, and the job what the ranks there have sent.

    `number` is the lane's for the run. `_works` are the chunks that a kernel is at work on, by the
    number that its Fold or Finish carries; `_behind` are those with more parts to sum than at once.
    """

    def __init__(
        self,
        number: int,
        name: str,
        run_id: str,
        slot: int,
        lane: int,
        route: Route,
        world_size: int,
        table: messages.ChunkTable,
        window: Window,
        max_keys: int,
        crc: Crc,
        acc_itemsize: Callable[[int, int], int],
        most_summed: int,
        traced: bool,
    ) -> None:
        self.number = number
        self.name = name
        self.run_id = run_id
        self.title = title = run_title(name, run_id)  # in texts and metrics, as ranks are its own
        self.idle = idle = IdleKeys()
        self.records = records = Records(
            title, window.room_for_records(world_size), idle.take_apart
        )
        records.take(RANK * world_size + SLOT * len(route.live))
        self.held = HeldBytes()
        self._most_unstable = window.unstable
        self.streams = Streams(
            slot, lane, route, records, self.held,
            lambda moved: KeyTable(title, world_size, max_keys, moved, records, idle),
        )  # fmt: skip
        # Where keys have become stable since the last beat. A dict finds its first one behind all
        # that were taken out before that.
        self._changed: OrderedDict[Stream, None] = OrderedDict()
        self._moved: deque[Stream] = deque()  # and are still to be dropped
        self._freed: list[Buffer] = []  # by the end of the run
        self.world_size = world_size
        self.table = table
        self.ledger = Ledger(window, world_size)
        self.seats = Seats(number, world_size, 0, crc)
        self._walked: tuple[dict[str, Any], ...] = ()  # what STATS says of waiting rounds
        self._walk_from = 0.0  # when it may be made anew
        self.departed: int | None = None
        self.counters = Counters()
        self.late = [0] * world_size  # rounds that each rank was the last in
        self.lateness = Lateness(world_size)
        self.durations = Durations()
        self._half = world_size // 2
        self.nonfinite = [0] * world_size  # chunks that each rank was the first to spoil
        self.open = OpenRounds()
        self._grants = Grants(self.ledger, self.open, self.seats, crc)
        self._debts = Debts(self.ledger, world_size)
        self._verdicts = Verdicts(
            title, world_size, self.open, self.seats, self._grants, self._debts
        )
        self._passed = Passed(number, self.ledger, self._verdicts, self._grants)
        self.missed = Missed(self.seats, self._verdicts)
        self._crc = crc
        self._acc_itemsize = acc_itemsize
        self._most_summed = most_summed
        self._traced = traced
        self._plans = Plans(world_size, table, self.records)
        self._behind: OrderedDict[Chunk, None] = OrderedDict()
        self._works: dict[int, Chunk] = {}
        self._last_work = 0

    def about(self) -> dict[str, object]:
        """For log lines."""
        return {"job": self.name, "run": self.run_id}

    # --- streams --------------------------------------------------------------------------------

    @property
    def route(self) -> Route:
        return self.streams.route

    @property
    def stream_count(self) -> int:
        """Those whose tables are not over."""
        return len(self.streams) + len(self._moved)

    def move(self, route: Route) -> list[Output]:
        """A newer route is known: streams that it moves are dropped."""
        out: list[Output] = []
        pairs = zip(self.route.live, route.live, strict=True)
        self.counters.failovers += sum(1 for before, after in pairs if before and not after)
        moved = self.streams.move(route)
        for stream in moved:
            stream.is_over = True
            self._changed.pop(stream, None)
            if stream.rounds:
                self._moved.appendleft(stream)
            else:
                self._moved.append(stream)
        self._drop_moved(out)
        if self._moved:
            self.ask_for_turns(out)
        if moved:
            self._grants.to_stuck(out)
        return out

    def _drop_moved(self, out: list[Output]) -> None:
        """All the streams with rounds, which hold buffers, and the next of the others."""
        freed: list[Buffer] = []
        out.append(Free(self.number, freed))
        dropped = 0
        while self._moved and (self._moved[0].rounds or dropped < STREAMS_AT_ONCE):
            stream = self._moved[0]
            for round_ in stream.rounds:
                self._forget_moved(round_)
            stream.drop(freed)
            self._moved.popleft()
            dropped += 1

    def _forget_moved(self, round_: Round) -> None:
        """The round goes on elsewhere."""
        self.open.drop(round_)
        self._debts.settle_all(round_)
        for rank, cost in round_.unanswered().items():
            self.ledger.settle(rank, cost)
        for chunk in round_.chunks.values():
            self._behind.pop(chunk, None)

    # --- contributions ------------------------------------------------------------------------

    def admit(self, rank: int, header: Header, unread: int) -> bool:
        """Refuse what makes no sense or has no room, before memory is taken (ProtocolError).

        `unread` bytes wait in the lane for the rank to read them. False where no memory is to be
        taken: a stream has moved away, or the contribution is here, or of a void round, and there
        is no room for it.
        """
        check_fields(header, rank, self.seats.epoch, self.world_size)
        plan = self._plans.of(header)
        home = self.route.home(header.key, header.chunk)
        stream = self.streams.find(rank, home, header.route)
        owned = stream is None or stream.place.owns(header.key, header.chunk)
        if header.chunk >= plan.chunks or not owned:
            raise ProtocolError(
                f"rank {rank} sent chunk {header.chunk} of key {header.key:#x} (a round of "
                f"{plan.chunks} chunks) to a lane that does not own it"
            )
        check_length(header, plan, rank)
        cost = plan.cost(header.chunk)
        if stream is None:
            return False
        if self.ledger.fits(rank, cost, unread):
            return True
        if not _takes_no_room(stream, rank, header):
            raise self.ledger.over(rank, cost, unread)
        return False

    def contributed(self, rank: int, event: Contributed, now: float, out: list[Output]) -> None:
        """Take one admitted contribution; outputs are added to `out`, also where it raises.

        Raises PeerLostError (a rank that the round needs has left), IntegrityError (a duplicate
        with other bytes), RecordsError or UnstableError; the buffer is then still the caller's.
        """
        header, buffer = event.header, event.buffer
        plan = self._plans.of(header)
        stream = self.streams.find(rank, self.route.home(header.key, header.chunk), header.route)
        if stream is None:  # a route has moved it while it was on its way
            self._free(buffer, out)
            return
        self.counters.contributions += 1
        self.counters.bytes_in += header.length
        key = stream.keys.open(header.key, now)
        if self._report_done(stream, key, rank, header.done, out):
            self._tell_in_time(stream, out)
        if position(header.round, header.chunk) < key.stable:
            self._drop_duplicate(buffer, out)
            stream.keys.maybe_idle(key)
            return
        if self.held.unstable > self._most_unstable:
            raise self._too_unstable()
        round_ = self._round(stream, key, header, plan, now)
        if not round_.void:
            self._maybe_open(round_, now, out)
        cost = plan.cost(header.chunk)
        round_.touched_at = now
        if not round_.void and not round_.agrees(header, plan):
            self._verdicts.mismatch(round_, out)
        if round_.void:
            self._verdicts.discard(key, round_, rank, header, buffer, cost, out)
            self._grants.maybe_grant(rank, out)
            return
        chunk = round_.chunk(header.chunk)
        if chunk.crcs[rank] is not None:
            self._duplicate(key, chunk, rank, header, buffer, out)
            return
        if buffer is None and header.length:
            raise ProtocolError(
                f"rank {rank} sent a second copy of key {key.label} round {header.round} chunk "
                f"{header.chunk} so slowly that the first is forgotten"
            )
        self.ledger.charge(rank, cost)
        round_.contributed[rank] += 1
        chunk.contribute(rank, header.payload_crc, buffer)
        if chunk.missing == self._half:
            chunk.half_at = now
        elif chunk.missing < self._half:
            self.lateness.note(rank, chunk.half_at, now)
        if not chunk.missing:
            round_.last = rank
            if self._traced:
                round_.note_wait(Wait(rank, chunk.half_at, now))
        if not chunk.missing or len(chunk.parts) >= FOLD_AT_ONCE:
            self._sum(key, chunk, header.op, header.dtype, plan, now, out)
        if self._behind and not self._works:
            self._sum_behind(now, out)
        self._grants.maybe_grant(rank, out)

    def describe(self, rank: int, header: Header, now: float, out: list[Output]) -> None:
        """DESCRIBE: what a round is, said by a rank that cannot send of it yet."""
        check_fields(header, rank, self.seats.epoch, self.world_size)
        plan = self._plans.of(header)
        stream = self.streams.find(rank, self.route.home(header.key, 0), header.route)
        if stream is None:
            return
        if not stream.place.owns(header.key, 0):
            raise ProtocolError(f"rank {rank} described a round to a lane that does not judge it")
        key = stream.keys.open(header.key, now)
        known = header.round in key.rounds
        # A description only makes a verdict come sooner: too many of them are not kept.
        keep = known or self.records.half_free(ROUND + LIST_PLACE * self.world_size)
        if position(header.round, 0) < key.stable or not keep:
            stream.keys.maybe_idle(key)
            return
        round_ = self._round(stream, key, header, plan, now)
        if not round_.void and not round_.agrees(header, plan):
            self._verdicts.mismatch(round_, out)
        if round_.void:
            self._verdicts.hear(key, round_, rank, header, out)
        elif self.records.half_free(MARK):
            round_.mark(round_.described, rank)

    def abandon(
        self, rank: int, header: Header, cause: messages.Abandon, now: float, out: list[Output]
    ) -> None:
        """ABANDON: the rank has given up a round."""
        stream = self.streams.find(rank, header.chunk, header.route)
        if stream is None:
            return
        key = stream.keys.open(header.key, now)
        # Known rounds first: a rank that had no part in one here may have passed it already.
        round_ = key.rounds.get(header.round)
        if round_ is None:
            if position(header.round + 1, 0) <= key.stable:
                stream.keys.maybe_idle(key)
                return
            round_ = self._new_round(stream, key, header.round, now)
        self._verdicts.abandon(round_, rank, cause, out)
        key.forget_if_over(round_)
        stream.keys.maybe_idle(key)

    def _round(
        self, stream: Stream, key: KeyProgress, header: Header, plan: Plan, now: float
    ) -> Round:
        """The record of a round, made and described by whoever speaks of it first."""
        round_ = key.rounds.get(header.round)
        if round_ is None:
            round_ = self._new_round(stream, key, header.round, now)
        if round_.descriptor is None and not round_.void:
            owned = stream.place.owned(key.id, plan.chunks)
            round_.describe(Descriptor(header), plan, owned)
        return round_

    def _new_round(self, stream: Stream, key: KeyProgress, number: int, now: float) -> Round:
        job = (self.name, self.run_id)
        round_ = Round(job, stream, key.id, number, self.world_size, now)
        key.add(round_)
        return round_

    def _maybe_open(self, round_: Round, now: float, out: list[Output]) -> None:
        """The first contribution of a round opens it."""
        if round_.opening:
            return
        if self.departed is not None:
            raise PeerLostError(f"rank {self.departed} has left the job")
        self._grants.begin(round_, now, out)

    def _sum(
        self,
        key: KeyProgress,
        chunk: Chunk,
        op: int,
        dtype: int,
        plan: Plan,
        now: float,
        out: list[Output],
    ) -> None:
        """Fold what has its turn; where all are in, and no more than are summed at once, finish."""
        is_behind = False
        if not chunk.missing and (op == COPY or not self._is_too_much(chunk, op, dtype)):
            self._finish(key, chunk, op, dtype, plan, now, out)
        elif op != COPY and len(chunk.parts) >= FOLD_AT_ONCE:
            is_behind = self._maybe_fold(chunk, op, dtype, plan, out)
        if is_behind and chunk not in self._behind:
            self._behind[chunk] = None
            self.ask_for_turns(out)
        elif self._behind and not is_behind:
            self._behind.pop(chunk, None)

    def _is_too_much(self, chunk: Chunk, op: int, dtype: int) -> bool:
        parts = len(chunk.parts)
        if parts * chunk.part_bytes <= self._most_summed:
            return False
        return parts > self._at_once(chunk, self._width(op, dtype))

    def _at_once(self, chunk: Chunk, width: int) -> int:
        """So many parts, where they are large; no fewer than make place for an accumulator."""
        return max(FOLD_AT_ONCE, width, self._most_summed // chunk.part_bytes)

    def _width(self, op: int, dtype: int) -> int:
        """An accumulator is as large as so many parts."""
        return self._acc_itemsize(op, dtype) // ITEM_SIZES[dtype]

    def _maybe_fold(self, chunk: Chunk, op: int, dtype: int, plan: Plan, out: list[Output]) -> bool:
        """Fold where the accumulator is no larger than what it replaces; True if more is left."""
        ranks = chunk.ready(_in_order(op, dtype))
        if len(ranks) < FOLD_AT_ONCE:
            return False
        width = self._width(op, dtype)
        if chunk.acc is None and len(ranks) < width:
            return False
        more = False
        if len(ranks) * chunk.part_bytes > self._most_summed:
            most = self._at_once(chunk, width)
            more = len(ranks) > most
            del ranks[most:]
        parts = [chunk.parts[rank] for rank in ranks]
        acc = parts[0] if chunk.acc is None and width == 1 else chunk.acc
        count = plan.elements(chunk.index)
        work = self._begin_work(chunk)
        chunk.folding = ranks
        out.append(Fold(self.number, work, op, dtype, count, acc, parts, ranks))
        return more

    def _sum_behind(self, now: float, out: list[Output]) -> None:
        """The next parts of the chunk that has waited longest."""
        chunk = next(iter(self._behind))
        round_ = chunk.round
        described, plan = round_.descriptor, round_.plan
        if chunk.phase is not Phase.COLLECTING or described is None or plan is None:
            del self._behind[chunk]  # void meanwhile
            return
        key = round_.stream.keys[round_.key]
        self._sum(key, chunk, described.op, described.dtype, plan, now, out)

    def _begin_work(self, chunk: Chunk) -> int:
        self._last_work += 1
        self._works[self._last_work] = chunk
        return self._last_work

    def folded(self, event: Folded, out: list[Output]) -> None:
        """The kernel is done with `folding`: the parts are in the accumulator."""
        chunk = self._works.pop(event.work)
        chunk.note(event.flags, event.culprit)
        out.append(Free(self.number, chunk.folded_into(event.taken)))

    def _finish(
        self,
        key: KeyProgress,
        chunk: Chunk,
        op: int,
        dtype: int,
        plan: Plan,
        now: float,
        out: list[Output],
    ) -> None:
        """All ranks are in: reduce, or forward the one part that there is."""
        chunk.step(Step.LAST_KERNEL)
        round_ = chunk.round
        round_.left -= 1
        if round_.left == 0:
            self.late[round_.last] += 1
        ranks = sorted(chunk.parts)
        parts = [chunk.parts[r] for r in ranks]
        if not parts:
            self._answer(key, chunk, 0, None, now, out)
        elif op == COPY:
            sender = next(iter(chunk.parts))
            crc = chunk.crcs[sender]
            assert crc is not None
            self._answer(key, chunk, crc, parts[0], now, out)
        else:
            count = plan.elements(chunk.index)
            work = self._begin_work(chunk)
            out.append(
                Finish(self.number, work, op, dtype, count, self.world_size, chunk.acc, parts,
                       ranks, parts[-1])
            )  # fmt: skip

    def reduced(self, event: Reduced, now: float, out: list[Output]) -> None:
        """The kernel is done: answer every rank, and keep the result until it is stable."""
        chunk = self._works.pop(event.work)
        chunk.note(event.flags, event.culprit)
        key = chunk.round.stream.keys[chunk.round.key]
        result = chunk.last_part()  # as _finish has said
        if chunk.culprit != NO_RANK:
            self.nonfinite[chunk.culprit] += 1
        self._answer(key, chunk, event.crc, result, now, out)

    def _answer(
        self,
        key: KeyProgress,
        chunk: Chunk,
        crc: int,
        result: Buffer | None,
        now: float,
        out: list[Output],
    ) -> None:
        round_ = chunk.round
        assert round_.plan is not None
        spent = chunk.complete(result, crc)
        if spent:
            out.append(Free(self.number, spent))
        key.keep(chunk)
        self.ledger.settle_all(round_.plan.cost(chunk.index))
        # Lanes finish neighbouring chunks at the same time: not all at the same worker's NIC.
        first = chunk.index % self.world_size
        if self._send_result(key, chunk, first, self.world_size, out) == self.world_size:
            round_.stream.keys.told(key)
        if round_.left == 0:
            self.counters.rounds += 1
            self.durations.note(now - round_.opened_at)
            self._grants.end(round_, out)
            if self._traced:
                out.append(self._trace(key, round_, now))

    def _trace(self, key: KeyProgress, round_: Round, now: float) -> Traced:
        assert round_.plan is not None and round_.wait is not None
        size = round_.plan.count * round_.plan.item
        return Traced(
            self.number, self.title, key.name or key.label, round_.number, size, round_.opened_at,
            round_.wait, round_.touched_at, now,
        )  # fmt: skip

    def _send_result(
        self, key: KeyProgress, chunk: Chunk, first: int, count: int, out: list[Output]
    ) -> int:
        """RESULT to so many ranks, from one on and around: with the bytes to those that asked for
        them, empty to others.

        Returns to how many: those that are connected.
        """
        round_ = chunk.round
        plan, described = round_.plan, round_.descriptor
        assert plan is not None and described is not None
        size = plan.bytes(chunk.index)
        to_all = size > 0 and plan.collective == ALL_REDUCE
        full: list[int] = []
        empty: list[int] = []
        for offset in range(count):
            rank = (first + offset) % self.world_size
            session = self.seats.sessions[rank]
            if session is not None:
                receives = to_all or plan.receives(chunk.index, rank, described.root)
                (full if receives else empty).append(session)
        header = Header(
            RESULT, described.dtype, described.op, described.collective, chunk.flags,
            chunk.culprit, described.root, self.seats.epoch, chunk.index, key.id, round_.number,
            described.count, 0, key.stable, size, round_.stream.since, chunk.result_crc,
        )  # fmt: skip
        if full:
            frame = pack_header(header, self._crc)
            out.append(Send(self.number, full, frame, chunk.result, size))
        if empty:
            frame = pack_header(header.replace(length=0, payload_crc=0), self._crc)
            out.append(Send(self.number, empty, frame, None, 0))
        self.counters.results += len(full) + len(empty)
        self.counters.bytes_out += size * len(full)
        return len(full) + len(empty)

    def _duplicate(
        self,
        key: KeyProgress,
        chunk: Chunk,
        rank: int,
        header: Header,
        buffer: Buffer | None,
        out: list[Output],
    ) -> None:
        """Exactly once: a second copy is dropped, or answered from the cache."""
        if chunk.crcs[rank] != header.payload_crc:
            raise IntegrityError(
                f"rank {rank} sent two different contributions for key {key.label} round "
                f"{header.round} chunk {header.chunk}"
            )
        self._drop_duplicate(buffer, out)
        if chunk.phase is Phase.COMPLETE:
            self._send_result(key, chunk, rank, 1, out)

    def _drop_duplicate(self, buffer: Buffer | None, out: list[Output]) -> None:
        self.counters.duplicates += 1
        self._free(buffer, out)

    def _free(self, buffer: Buffer | None, out: list[Output]) -> None:
        if buffer is not None:
            out.append(Free(self.number, (buffer,)))

    # --- done and stable ------------------------------------------------------------------------

    def announce(self, rank: int, header: Header, name: str, now: float) -> None:
        """KEY: the name behind an id."""
        stream = self.streams.find(rank, header.chunk, header.route)
        if stream is not None:
            stream.keys.announce(header.key, name, now)

    def heartbeat(
        self,
        rank: int,
        header: Header,
        payload: memoryview | None,
        now: float,
        out: list[Output],
    ) -> None:
        """HEARTBEAT of a worker: done positions of keys in a stream."""
        if payload is None:
            return
        stream = self.streams.find(rank, header.chunk, header.route)
        if stream is None:
            return
        for key, done in stream.keys.entries(payload, rank, now):
            self._report_done(stream, key, rank, done, out)
            stream.keys.maybe_idle(key)
        self._tell_in_time(stream, out)

    def _report_done(
        self, stream: Stream, key: KeyProgress, rank: int, done: int, out: list[Output]
    ) -> bool:
        """Whether more of the key is stable now."""
        freed = stream.keys.report(key, rank, done)
        if freed is None:
            return False
        self._changed[stream] = None
        if freed:
            out.append(Free(self.number, freed))
        if stream.since:
            had_turns = bool(self._passed)
            self._passed.add(stream, key)
            if self._passed and not had_turns:
                self.ask_for_turns(out)
        return True

    def _tell_in_time(self, stream: Stream, out: list[Output]) -> None:
        """Ranks that wait for half of their credit to be stable hear of it before the next beat.

        In one frame: of the rest they hear in the next ones.
        """
        if 2 * stream.keys.unreported >= self.ledger.window.credit:
            out.append(self._tell_news(stream, MAX_HEARTBEAT_ENTRIES))

    def _too_unstable(self) -> UnstableError:
        """The key that keeps the most chunks, and the rank that has not reported them."""
        keys = (key for stream in self.streams for key in stream.keys)
        key = max(keys, key=_kept)
        rank = key.slowest()
        number, chunk = divmod(key.stable, MAX_CHUNKS)
        text = (
            f"rank {rank} has reported key {key.label} as done up to round {number} chunk {chunk}, "
            f"and {len(key.held):,} chunks of it are complete since: results that are not stable "
            f"take {self.held.unstable:,} bytes, the limit is {self._most_unstable:,}"
        )
        return UnstableError(text, rank)

    @property
    def has_news(self) -> bool:
        """Whether stable positions may have changed that the ranks were not told."""
        return bool(self._changed)

    def beat(self, most: int) -> Send:
        """A HEARTBEAT to every rank: `most` stable positions that have changed, or an empty one."""
        while self._changed:
            stream = next(iter(self._changed))
            if stream.keys.has_news:
                return self._tell_news(stream, most)
            del self._changed[stream]
        return self.seats.empty_heartbeat()

    def _tell_news(self, stream: Stream, most: int) -> Send:
        send = self.seats.heartbeat(stream, stream.keys.news(most), self.seats.present)
        if not stream.keys.has_news:
            self._changed.pop(stream, None)
        return send

    # --- a rank that is back ----------------------------------------------------------------------

    def rejoined(self, rank: int) -> list[Output]:
        """After the WELCOME on its new connection the rank may have missed something."""
        out: list[Output] = []
        self._debts.begin_again(rank)
        self.missed.add(rank)
        self._grants.again(rank, out)
        self.ask_for_turns(out)
        return out

    # --- work that is too much for one turn -------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether there is work that waits for turns of the job."""
        return bool(self._behind or self._moved or self._passed or self.missed)

    def ask_for_turns(self, out: list[Output]) -> None:
        """In the name of any session that is here."""
        for session in self.seats.sessions:
            if session is not None:
                out.append(Behind(self.number, session))
                return

    def catch_up(self, now: float) -> list[Output]:
        """The next part: of a sum, of streams that have moved away, of what the ranks have passed,
        or of what they have missed."""
        out: list[Output] = []
        if self._behind:
            self._sum_behind(now, out)
        elif self._moved:
            self._drop_moved(out)
        elif self._passed:
            self._passed.forget_more(out)
        else:
            return self.missed.tell(self.streams, now)
        return out

    # --- reports --------------------------------------------------------------------------------

    def stall_report(self, now: float, after: float) -> list[Output]:
        """STALL to every rank about the rounds that nothing has come for, oldest first."""
        stalled = self.open.stalled(now, after, MAX_STALLS)
        if not stalled:
            return []
        rows = tuple(stall_entry(r.stream.keys[r.key], r, now) for r in stalled)
        return [self.seats.to_all(messages.Stall(rows)), *(self._stalled(r, now) for r in stalled)]

    def _stalled(self, round_: Round, now: float) -> Log:
        key = round_.stream.keys[round_.key]
        text = f"job {self.title!r}: {stall_text(key, round_, now)}"
        return Log(self.number, logging.WARNING, text, about(key, round_))

    def ask_stats(self, now: float, interval: float) -> messages.Stats:
        """The answer to a STATS. What takes a walk over waiting rounds is as old as `interval`."""
        if now >= self._walk_from:
            self._walk_from = now + interval
            self._walked = self.waiting(now)
            self.counters.stats_walks += 1
        else:
            self.counters.stats_shared += 1
        return self.stats(self._walked)

    def waiting(self, now: float) -> tuple[dict[str, Any], ...]:
        """The oldest rounds that are open, and who is absent from them."""
        oldest = islice(self.open, MAX_STALLS)
        return tuple(stall_entry(r.stream.keys[r.key], r, now) for r in oldest)

    def stats(self, waiting: tuple[dict[str, Any], ...] = ()) -> messages.Stats:
        counters = self.counters
        return messages.Stats(
            counters.bytes_in, counters.bytes_out, counters.contributions, counters.results,
            counters.duplicates, counters.rounds, len(self.open), self.records.keys,
            self.held.total, most(self.late), waiting,
        )  # fmt: skip

    @property
    def refused_rounds(self) -> int:
        """Those that this lane has judged."""
        return self._verdicts.refused

    def drop_all(self) -> list[Output]:
        """The run is over: give every buffer back. Where this raises it can be called again."""
        freed = self._freed
        for stream in chain(self.streams, self._moved):
            stream.drop(freed)
        self.streams.clear()
        self._changed.clear()
        self._moved.clear()
        self.open.clear()
        self._behind.clear()
        self._passed.clear()
        self._works.clear()
        self._freed = []
        return [Free(self.number, freed)]


def _in_order(op: int, dtype: int) -> bool:
    """Law 2: sums of float16 in float64 are exact (at most 8,192 ranks), their order is free."""
    return dtype != _FREE_DTYPE or op not in _FREE_OPS


def _kept(key: KeyProgress) -> int:
    return len(key.held)


def _takes_no_room(stream: Stream, rank: int, header: Header) -> bool:
    """Whether the contribution is a second copy, or of a void round."""
    if header.key not in stream.keys:
        return False
    key = stream.keys[header.key]
    if position(header.round, header.chunk) < key.stable:
        return True
    round_ = key.rounds.get(header.round)
    if round_ is None or round_.void:
        return round_ is not None
    chunk = round_.chunks.get(header.chunk)
    return chunk is not None and chunk.crcs[rank] is not None
