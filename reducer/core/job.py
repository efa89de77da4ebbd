"""One complete run of a job on one lane: contributions in, results out.

The job knows ranks, keys, rounds and credits; the lane above it knows sessions and runs. Output
order matters: a buffer is freed only after the last output that reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from reducer.core.admission import Plans, check_fields, check_length
from reducer.core.buffer import Buffer
from reducer.core.credits import Ledger, Window
from reducer.core.events import (
    Contributed,
    Discard,
    Finish,
    Fold,
    Free,
    Log,
    Output,
    Reduced,
    Send,
)
from reducer.core.frames import control_frame, payload_frame
from reducer.core.keytable import KeyTable
from reducer.core.open_rounds import OpenRounds
from reducer.core.plan import Place, Plan
from reducer.core.progress import KeyProgress
from reducer.core.round import ABSENT, Chunk, Phase, Round, descriptor_of
from reducer.core.texts import mismatch_text, stall_entry, stall_text
from reducer.errors import IntegrityError, PeerLostError, ProtocolError, QuotaError
from reducer.wire import messages
from reducer.wire.codes import (
    Collective,
    DType,
    ErrorCode,
    MessageKind,
    ReduceOp,
)
from reducer.wire.header import NO_RANK, Crc, Header, pack_header
from reducer.wire.keys import position

MAX_STALLS = 16
MAX_LATE = 64
# Contributions are bounded by credit; the records that DESCRIBE and ABANDON leave, by this.
MAX_UNPAID_ROUNDS = 1_024
# Sums of float16 in float64 are exact (at most 8,192 ranks), so their order is free (law 2).
_ORDER_FREE = frozenset(((int(ReduceOp.SUM), int(DType.FLOAT16)),
                         (int(ReduceOp.MEAN), int(DType.FLOAT16))))  # fmt: skip


@dataclass(slots=True)
class Counters:
    """Of one job on this lane; bytes are payload bytes. `late[rank]`: rounds it was last in."""

    bytes_in: int = 0
    bytes_out: int = 0
    contributions: int = 0
    results: int = 0
    duplicates: int = 0
    rounds: int = 0


class Job:
    """`sessions[rank]` is kept by the lane: the session to answer, None while it has none."""

    def __init__(
        self,
        name: str,
        run_id: str,
        place: Place,
        world_size: int,
        table: messages.ChunkTable,
        window: Window,
        max_keys: int,
        crc: Crc,
        acc_itemsize: Callable[[int, int], int],
    ) -> None:
        self.name = name
        self.run_id = run_id
        self.place = place
        self.world_size = world_size
        self.table = table
        self.ledger = Ledger(window, world_size)
        self.epoch = 0
        self.route = 0
        self.sessions: list[int | None] = [None] * world_size
        self.departed: int | None = None
        self.draining = ""
        self.counters = Counters()
        self.late = [0] * world_size
        self.keys = KeyTable(name, world_size, max_keys)
        self.open = OpenRounds()
        self._crc = crc
        self._acc_itemsize = acc_itemsize
        self._plans = Plans(world_size, table)

    # --- contributions ------------------------------------------------------------------------

    def admit(self, rank: int, header: Header) -> None:
        """Refuse what makes no sense or has no room, before memory is taken (ProtocolError)."""
        check_fields(header, rank, self.epoch, self.world_size)
        plan = self._plans.of(header)
        if header.chunk >= plan.chunks or not self.place.owns(header.key, header.chunk):
            raise ProtocolError(
                f"rank {rank} sent chunk {header.chunk} of key {header.key:#x} (a round of "
                f"{plan.chunks} chunks) to a lane that does not own it"
            )
        check_length(header, plan, rank)
        self.ledger.check(rank, plan.cost(header.chunk))

    def contributed(self, rank: int, event: Contributed, now: float, out: list[Output]) -> None:
        """Take one admitted contribution; outputs are added to `out`, also where it raises.

        Raises PeerLostError (a rank that the round needs has left), IntegrityError (a duplicate
        with other bytes) or QuotaError (keys); the buffer is then still the caller's.
        """
        header, buffer = event.header, event.buffer
        plan = self._plans.of(header)
        self.counters.contributions += 1
        self.counters.bytes_in += header.length
        key = self.keys.open(header.key, now)
        self._report_done(key, rank, header.done, out)
        if position(header.round, header.chunk) < key.stable:
            self._drop_duplicate(buffer, out)
            self.keys.maybe_idle(key)
            return
        round_ = self._round(key, header, plan, now)
        if not round_.void:
            self._maybe_open(round_, now, out)
        cost = plan.cost(header.chunk)
        self.ledger.charge(rank, cost)
        round_.touched_at = now
        if not round_.void and not round_.agrees(header, plan):
            self._mismatch(key, round_, out)
        if round_.void:
            self._discard(key, round_, rank, header, buffer, cost, out)
            self._maybe_grant(rank, out)
            return
        chunk = round_.chunk(header.chunk)
        if chunk.crcs[rank] != ABSENT:
            self.ledger.settle(rank, cost)
            self._duplicate(chunk, rank, header, buffer, out)
            return
        round_.contributed[rank] += 1
        chunk.contribute(rank, header.payload_crc, buffer)
        if chunk.missing:
            self._maybe_fold(chunk, header, plan, out)
        else:
            self._finish(key, chunk, rank, header, plan, out)
        self._maybe_grant(rank, out)

    def describe(self, rank: int, header: Header, now: float) -> list[Output]:
        """DESCRIBE: what a round is, said by a rank that cannot send of it yet."""
        check_fields(header, rank, self.epoch, self.world_size)
        plan = self._plans.of(header)
        if not self.place.owns(header.key, 0):
            raise ProtocolError(f"rank {rank} described a round to a lane that does not judge it")
        out: list[Output] = []
        key = self.keys.open(header.key, now)
        known = header.round in key.rounds
        # A description only makes a verdict come sooner: too many of them are not kept.
        if position(header.round, 0) < key.stable or not (known or _has_room(key)):
            self.keys.maybe_idle(key)
            return out
        round_ = self._round(key, header, plan, now)
        self._maybe_refuse(round_, out)
        if not round_.void and not round_.agrees(header, plan):
            self._mismatch(key, round_, out)
        if round_.void:
            self._hear(key, round_, rank, header, out)
        else:
            round_.described.add(rank)
        return out

    def _round(self, key: KeyProgress, header: Header, plan: Plan, now: float) -> Round:
        """The record of a round, made and described by whoever speaks of it first."""
        round_ = key.rounds.get(header.round)
        if round_ is None:
            round_ = self._new_round(key, header.round, now)
        if round_.descriptor is None and not round_.void:
            owned = self.place.owned(key.id, plan.chunks)
            round_.describe(descriptor_of(header), plan, owned)
        return round_

    def _new_round(self, key: KeyProgress, number: int, now: float) -> Round:
        job = (self.name, self.run_id)
        round_ = key.rounds[number] = Round(job, key.id, number, self.world_size, now)
        return round_

    def _maybe_open(self, round_: Round, now: float, out: list[Output]) -> None:
        """The first contribution of a round opens it."""
        if round_.begun:
            return
        self._maybe_refuse(round_, out)
        if round_.void:
            return
        if self.departed is not None:
            raise PeerLostError(f"rank {self.departed} has left the job")
        self.open.begin(round_, now)
        if len(self.open) == 1:
            self._grant_stuck(out)

    def _maybe_refuse(self, round_: Round, out: list[Output]) -> None:
        """While draining, what is open goes on, and nothing new begins."""
        if self.draining and not round_.void and not round_.begun:
            round_.refusal = f"this reducer is draining ({self.draining}): it begins no new round"
            self._void(round_, out)

    def _maybe_fold(self, chunk: Chunk, header: Header, plan: Plan, out: list[Output]) -> None:
        """Fold what has its turn, where the accumulator is no larger than what it replaces."""
        if header.op in (ReduceOp.COPY, ReduceOp.NONE) or not header.length:
            return
        in_order = (header.op, header.dtype) not in _ORDER_FREE
        ready = chunk.ready(in_order)
        if not ready:
            return
        width = self._acc_itemsize(header.op, header.dtype) // plan.item
        if chunk.acc is None and ready < max(2, width):
            return
        parts = chunk.take_ready(in_order)
        if chunk.acc is None and width == 1:
            chunk.acc = parts.pop(0)
        count = plan.elements(chunk.index)
        out.append(Fold(chunk, header.op, header.dtype, count, chunk.acc, parts))
        out += map(Free, parts)

    def _finish(
        self,
        key: KeyProgress,
        chunk: Chunk,
        rank: int,
        header: Header,
        plan: Plan,
        out: list[Output],
    ) -> None:
        """All ranks are in: reduce, or forward the one part that there is."""
        round_ = chunk.round
        round_.left -= 1
        if round_.left == 0:
            self.late[rank] += 1
        parts = [chunk.parts[r] for r in sorted(chunk.parts)]
        if not parts:
            out += self._answer(key, chunk, 0, 0, None)
        elif header.op == ReduceOp.COPY:
            sender = next(iter(chunk.parts))
            out += self._answer(key, chunk, 0, chunk.crcs[sender], parts[0])
        else:
            count = plan.elements(chunk.index)
            out.append(
                Finish(chunk, header.op, header.dtype, count, self.world_size, chunk.acc,
                       parts, parts[-1])
            )  # fmt: skip

    def reduced(self, event: Reduced) -> list[Output]:
        """The kernel is done: answer every rank, and keep the result until it is stable."""
        chunk = event.chunk
        key = self.keys[chunk.round.key]
        if chunk.phase != Phase.FOLDING:
            return []
        *spent, result = (chunk.parts[r] for r in sorted(chunk.parts))
        spent += [chunk.acc] if chunk.acc is not None else []
        out = self._answer(key, chunk, event.flags, event.crc, result)
        return [*map(Free, spent), *out]

    def _answer(
        self, key: KeyProgress, chunk: Chunk, flags: int, crc: int, result: Buffer | None
    ) -> list[Output]:
        round_ = chunk.round
        assert round_.plan is not None
        chunk.complete(result, flags, crc)
        key.keep(chunk)
        self.ledger.settle_all(round_.plan.cost(chunk.index))
        out: list[Output] = []
        # Lanes finish neighbouring chunks at the same time: not all at the same worker's NIC.
        first = chunk.index % self.world_size
        self._send_result(key, chunk, chain(range(first, self.world_size), range(first)), out)
        self.keys.told(key)
        if round_.left == 0:
            self.counters.rounds += 1
            self._close_round(round_, out)
        return out

    def _send_result(
        self, key: KeyProgress, chunk: Chunk, ranks: Iterable[int], out: list[Output]
    ) -> None:
        """RESULT to each rank: with the bytes to those that asked for them, empty to others."""
        round_ = chunk.round
        plan, described = round_.plan, round_.descriptor
        assert plan is not None and described is not None
        size = plan.bytes(chunk.index)
        to_all = size > 0 and plan.collective == Collective.ALL_REDUCE
        full: list[int] = []
        empty: list[int] = []
        for rank in ranks:
            session = self.sessions[rank]
            if session is not None:
                receives = to_all or plan.receives(chunk.index, rank, described.root)
                (full if receives else empty).append(session)
        header = Header(
            MessageKind.RESULT, described.dtype, described.op, described.collective, chunk.flags,
            NO_RANK, described.root, self.epoch, chunk.index, key.id, round_.number,
            described.count, 0, key.stable, size, self.route, chunk.result_crc,
        )  # fmt: skip
        if full:
            frame = pack_header(header, self._crc)
            out.append(Send(full, frame, chunk.result, size))
        if empty:
            frame = pack_header(header._replace(length=0, payload_crc=0), self._crc)
            out.append(Send(empty, frame, None, 0))
        self.counters.results += len(full) + len(empty)
        self.counters.bytes_out += size * len(full)

    def _duplicate(
        self, chunk: Chunk, rank: int, header: Header, buffer: Buffer | None, out: list[Output]
    ) -> None:
        """Exactly once: a second copy is dropped, or answered from the cache."""
        if chunk.crcs[rank] != header.payload_crc:
            raise IntegrityError(
                f"rank {rank} sent two different contributions for key "
                f"{self.keys[chunk.round.key].label} round {header.round} chunk {header.chunk}"
            )
        self._drop_duplicate(buffer, out)
        if chunk.phase == Phase.COMPLETE:
            self._send_result(self.keys[chunk.round.key], chunk, (rank,), out)

    def _drop_duplicate(self, buffer: Buffer | None, out: list[Output]) -> None:
        self.counters.duplicates += 1
        if buffer is not None:
            out.append(Free(buffer))

    # --- refused and abandoned rounds -----------------------------------------------------------

    def _mismatch(self, key: KeyProgress, round_: Round, out: list[Output]) -> None:
        """Two descriptors in one round: nothing of it is summed."""
        if self.place.owns(key.id, 0):
            self.open.judge(round_)
        self._void(round_, out)

    def _void(self, round_: Round, out: list[Output]) -> None:
        out += map(Free, round_.make_void())
        self._close_round(round_, out)

    def _discard(
        self,
        key: KeyProgress,
        round_: Round,
        rank: int,
        header: Header,
        buffer: Buffer | None,
        cost: int,
        out: list[Output],
    ) -> None:
        """A contribution to a void round: count its cost until the ABANDON, drop its bytes."""
        round_.owed[rank] = round_.owed.get(rank, 0) + cost
        if buffer is not None:
            out.append(Free(buffer))
        self._hear(key, round_, rank, header, out)

    def _hear(
        self, key: KeyProgress, round_: Round, rank: int, header: Header, out: list[Output]
    ) -> None:
        """With the last rank's word the verdict is complete: one text for all."""
        if round_.refusal:
            refused = messages.Refused(int(ErrorCode.UNAVAILABLE), round_.refusal)
            out.append(self.to_rank(rank, refused, key=key.id, round=round_.number))
        if not round_.hear(rank, descriptor_of(header)):
            return
        assert round_.verdict is not None
        text = mismatch_text(key, round_, round_.verdict)
        refused = messages.Refused(int(ErrorCode.MISMATCH), text)
        out.append(self.to_all(refused, key=key.id, round=round_.number))
        out.append(Log(logging.WARNING, f"job {self.name!r}: {text}"))
        self.open.judged(round_)

    def abandon(self, rank: int, header: Header, now: float) -> list[Output]:
        """ABANDON: the rank has given up a round; it settles what it has sent of it."""
        out: list[Output] = []
        key = self.keys.open(header.key, now)
        # Known rounds first: a rank that had no part in one here may have passed it already.
        round_ = key.rounds.get(header.round)
        if round_ is None:
            if position(header.round + 1, 0) <= key.stable:
                self.keys.maybe_idle(key)
                return out
            if not _has_room(key):
                raise QuotaError(
                    f"rank {rank} abandons more than {MAX_UNPAID_ROUNDS:,} rounds of key "
                    f"{key.label} that this lane does not know"
                )
            round_ = self._new_round(key, header.round, now)
        if not round_.void:
            self._void(round_, out)
        self.ledger.settle(rank, round_.owed.pop(rank, 0))
        round_.abandoned.add(rank)
        key.forget_if_over(round_)
        self.keys.maybe_idle(key)
        return out

    def _close_round(self, round_: Round, out: list[Output]) -> None:
        """The round is open no more; if it was the oldest, the next one may need a grant."""
        if self.open.end(round_):
            self._grant_stuck(out)

    # --- flow control ---------------------------------------------------------------------------

    def _grant_stuck(self, out: list[Output]) -> None:
        """Another round is the oldest now: whoever cannot go on may need it.

        Ranks are stuck even while no other round is open: by what they sent of void rounds.
        """
        for rank in self.ledger.stuck():
            self._maybe_grant(rank, out)

    def _maybe_grant(self, rank: int, out: list[Output]) -> None:
        """Let a rank go on with the oldest open round when its credit may be used up."""
        oldest = self.open.oldest
        if oldest is None or not self.ledger.grant(rank, oldest):
            return
        session = self.sessions[rank]
        if session is not None:
            header = Header(
                kind=MessageKind.GRANT, epoch=self.epoch, key=oldest.key, round=oldest.number,
                route=self.route,
            )  # fmt: skip
            out.append(Send((session,), pack_header(header, self._crc), None, 0))

    # --- done and stable ------------------------------------------------------------------------

    def heartbeat(self, rank: int, payload: memoryview | None, now: float) -> list[Output]:
        """HEARTBEAT of a worker: done positions of keys."""
        freed = self.keys.heartbeat(rank, payload, now) if payload is not None else []
        return [*map(Free, freed), *self._maybe_beat()]

    def _report_done(self, key: KeyProgress, rank: int, done: int, out: list[Output]) -> None:
        freed = self.keys.report(key, rank, done)
        if freed:
            out += map(Free, freed)
            out += self._maybe_beat()

    def _maybe_beat(self) -> list[Output]:
        """Tell the ranks at once when much has become stable: they hold copies of it."""
        return self.beat() if 2 * self.keys.unreported >= self.ledger.window.credit else []

    def beat(self) -> list[Output]:
        """HEARTBEAT to every rank, with the stable positions that have changed."""
        sessions = self._present()
        frames = [
            payload_frame(MessageKind.HEARTBEAT, payload, self._crc)
            for payload in self.keys.beat_payloads()
        ]
        return [Send(sessions, frame, None, 0) for frame in frames]

    # --- frames to ranks ------------------------------------------------------------------------

    def to_rank(self, rank: int, message: messages.Message, **fields: int) -> Send:
        session = self.sessions[rank]
        sessions = () if session is None else (session,)
        return Send(sessions, control_frame(message, self._crc, **fields), None, 0)

    def to_all(self, message: messages.Message, **fields: int) -> Send:
        view = {"epoch": self.epoch, "route": self.route}
        return Send(self._present(), control_frame(message, self._crc, **view, **fields), None, 0)

    def _present(self) -> list[int]:
        return [session for session in self.sessions if session is not None]

    # --- reports --------------------------------------------------------------------------------

    def stall_report(self, now: float, after: float) -> list[Output]:
        """STALL to every rank about the rounds that nothing has come for, oldest first."""
        stalled = self.open.stalled(now, after)[:MAX_STALLS]
        if not stalled:
            return []
        rows = tuple(stall_entry(self.keys[r.key], r, now) for r in stalled)
        texts = (stall_text(self.keys[r.key], r, now) for r in stalled)
        logs = [Log(logging.WARNING, f"job {self.name!r}: {text}") for text in texts]
        return [self.to_all(messages.Stall(rows)), *logs]

    def stats(self) -> messages.Stats:
        counters = self.counters
        last = [(rank, n) for rank, n in enumerate(self.late) if n]
        last.sort(key=lambda pair: -pair[1])
        return messages.Stats(
            counters.bytes_in, counters.bytes_out, counters.contributions, counters.results,
            counters.duplicates, counters.rounds, len(self.open), len(self.keys),
            self.held_bytes(), tuple(last[:MAX_LATE]),
        )  # fmt: skip

    def held_bytes(self) -> int:
        """Bytes of the buffers that the job holds; walks all of them."""
        return sum(len(buffer.view) for buffer in self._buffers())

    def _buffers(self) -> Iterator[Buffer]:
        for key in self.keys:
            for round_ in key.rounds.values():
                for chunk in round_.chunks.values():
                    yield from chunk.buffers()

    def drop_all(self) -> list[Output]:
        """The run is over: give every buffer back."""
        out: list[Output] = []
        for key in self.keys:
            for round_ in key.rounds.values():
                for chunk in round_.chunks.values():
                    out += map(Free, chunk.drop())
                    if chunk.result is not None:
                        out.append(Discard(chunk.result))
        self.keys.clear()
        self.open.clear()
        return out


def _has_room(key: KeyProgress) -> bool:
    """Whether one more round of the key may be recorded without a contribution."""
    return len(key.rounds) < MAX_UNPAID_ROUNDS
