"""Admits contributions before memory is taken for them, and adds them to their chunks."""

from __future__ import annotations

from reducer.core.measures.waits import Waits
from reducer.core.rounds.chunk_plan import ChunkPlan
from reducer.core.rounds.header_checks import Plans
from reducer.core.rounds.key_table import KeyRounds
from reducer.core.rounds.round import Chunk, Phase, Round
from reducer.core.rounds.stream import Stream, Streams
from reducer.core.runs.flow import Flow
from reducer.core.runs.mismatches import Mismatches
from reducer.core.runs.positions import Positions
from reducer.core.runs.seats import Seats
from reducer.core.runs.sums import FOLD_AT_ONCE, Sums
from reducer.core.runs.terms import Terms
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Admission, Contributed, Free, Output, Wait
from reducer.wire.codes import HELD
from reducer.wire.errors import IntegrityError, PeerLostError, ProtocolError
from reducer.wire.header import Header
from reducer.wire.keys import position


class Admitted(Admission):
    """Where a contribution belongs, looked up once, before memory is taken."""

    __slots__ = ("cost", "plan", "stream")

    def __init__(self, stream: Stream, plan: ChunkPlan, cost: int) -> None:
        self.stream = stream
        self.plan = plan
        self.cost = cost  # what it takes of the rank's credit


class Contributions:
    """`taken` counts contributions, `bytes_in` their payloads, and `duplicates` second copies."""

    def __init__(
        self,
        plans: Plans,
        terms: Terms,
        seats: Seats,
        streams: Streams,
        flow: Flow,
        mismatches: Mismatches,
        sums: Sums,
        positions: Positions,
    ) -> None:
        self.taken = 0
        self.bytes_in = 0
        self.duplicates = 0
        self.waits = Waits(terms.world_size)
        self._elastic = terms.elastic
        self._plans = plans
        self._seats = seats
        self._streams = streams
        self._accounts = flow.accounts
        self._grants = flow.grants
        self._mismatches = mismatches
        self._sums = sums
        self._results = sums.results
        self._positions = positions
        self._held = positions.held
        self._most_unstable = positions.most_unstable

    def admit(self, rank: int, header: Header, unread: int) -> Admitted | None:
        """Check a contribution and look up where it belongs, before memory is taken.

        `unread` bytes wait in the lane for the rank to read them. Returns None if the payload is to
        be discarded: the stream has moved away, or the rank is out of room and the contribution is
        a second copy or of a void round. Raises the ProtocolError family for invalid fields, and
        for any other contribution without room.
        """
        plan = self._plans.of_contribution(header, rank)
        stream = self._stream_of(rank, header)
        if stream is None:
            return None
        if not stream.place.owns(header.key, header.chunk):
            raise ProtocolError(
                f"rank {rank} sent chunk {header.chunk} of key {header.key:#x} (a round of "
                f"{plan.chunks} chunks) to a lane that does not own it"
            )
        cost = plan.cost(header.chunk)
        if self._accounts.fits(rank, cost, unread):
            return Admitted(stream, plan, cost)
        if not _takes_no_room(stream, rank, header):
            raise self._accounts.over(rank, cost, unread)
        return None

    def take(self, rank: int, event: Contributed, now: float, out: list[Output]) -> None:
        """Take one admitted contribution; outputs are added to `out`, even if this raises.

        Raises PeerLostError (a rank that the round needs has left), IntegrityError (a duplicate
        with other bytes), RecordsError or UnstableError; the buffer is then still the caller's.
        """
        header, buffer, admission = event.header, event.buffer, event.admission
        if admission is None and not header.length:  # no memory was needed
            admission = self.admit(rank, header, 0)
        stream: Stream | None
        if isinstance(admission, Admitted):
            stream, plan, cost = admission.stream, admission.plan, admission.cost
        else:  # the payload was discarded
            stream, plan = self._stream_of(rank, header), self._plans.of(header)
            cost = plan.cost(header.chunk)
        if stream is None or stream.is_over:  # a route has moved the stream since `admit`
            self._free(buffer, out)
            return
        self.taken += 1
        self.bytes_in += header.length
        key = stream.keys.open(header.key, now)
        freed = stream.keys.report(key, rank, header.done)
        if freed is not None:
            self._positions.rise(stream, key, freed, out)
            self._positions.tell_in_time(stream, out)
        if position(header.round, header.chunk) < key.stable:
            self._drop_duplicate(buffer, out)
            stream.keys.maybe_idle(key)
            return
        if self._held.unstable > self._most_unstable:
            raise self._positions.too_unstable()
        round_ = key.described(stream, header, plan, now)
        if not round_.void:
            self._open_or_void(round_, header, plan, now, out)
        round_.touched_at = now
        if round_.void:
            self._mismatches.discard(round_, rank, header, buffer, cost, out)
        else:
            chunk = round_.chunk(header.chunk, cost)
            if chunk.crcs[rank] is not None:
                self._duplicate(key, chunk, rank, header, buffer, out)
                return
            self._add(key, chunk, rank, header, buffer, now, out)
        self._grants.maybe_grant(rank, out)

    def _stream_of(self, rank: int, header: Header) -> Stream | None:
        home = self._streams.owners.home(header.key, header.chunk)
        return self._streams.find(rank, home, header)

    def _open_or_void(
        self, round_: Round, header: Header, plan: ChunkPlan, now: float, out: list[Output]
    ) -> None:
        """Open the round if this is its first contribution; void it if the descriptors differ."""
        if not round_.opening:
            if self._seats.departed is not None and not self._elastic:
                raise PeerLostError(
                    f"rank {self._seats.departed} has left the job, and round {round_.number} of "
                    f"key {round_.key.label} needs it: let every rank make the same calls before "
                    "one of them leaves"
                )
            self._grants.begin(round_, now, out)
        if not round_.agrees(header, plan):
            self._mismatches.mismatch(round_, out)

    def _add(
        self,
        key: KeyRounds,
        chunk: Chunk,
        rank: int,
        header: Header,
        buffer: Buffer | None,
        now: float,
        out: list[Output],
    ) -> None:
        """The rank's first contribution to the chunk."""
        if buffer is None and header.length:
            raise ProtocolError(
                f"the second copy of key {key.label} round {header.round} chunk {header.chunk} "
                f"from rank {rank} arrived after the lane had forgotten the first: rank {rank} "
                "must connect again"
            )
        if header.flags & HELD or chunk.holders is not None:
            self._add_held(key, chunk, rank, header, buffer, now, out)
            return
        self._accounts.charge(rank, chunk.cost)
        chunk.contribute(rank, header.payload_crc, buffer, now)
        if chunk.missing < chunk.round.stream.half:
            self.waits.note(rank, chunk.half_at, now)
        if not chunk.missing and self._results.traced:
            chunk.round.note_wait(Wait(rank, chunk.half_at, now))
        may_sum = not chunk.missing or len(chunk.parts) >= FOLD_AT_ONCE
        if may_sum and self._sums.add(key, chunk, now, out):
            self._seats.ask_for_turns(out)
        if self._sums.behind:
            self._sums.maybe_go_on(now, out)

    def _add_held(
        self,
        key: KeyRounds,
        chunk: Chunk,
        rank: int,
        header: Header,
        buffer: Buffer | None,
        now: float,
        out: list[Output],
    ) -> None:
        """A holder has sent the result of the chunk, now or earlier: nothing is summed any more.

        A rank that has contributed is answered at once, a holder when all ranks have sent.
        """
        if chunk.holders is None:
            self._accounts.charge(rank, chunk.cost)
            early = chunk.present()
            self._sums.give_up(chunk)
            spent = chunk.adopt(rank, header, buffer, now)
            if spent:
                out.append(Free(self._seats.run, spent))
            for other in early:
                self._accounts.settle(other, chunk.cost)
                self._results.send(key, chunk, other, 1, out)
        elif header.flags & HELD:
            if header.payload_crc != chunk.result_crc:
                raise IntegrityError(
                    f"ranks {chunk.holders[0]} and {rank} hold different results for key "
                    f"{key.label} round {header.round} chunk {header.chunk}"
                )
            self._accounts.charge(rank, chunk.cost)
            chunk.holders.append(rank)
            chunk.contribute(rank, header.payload_crc, None, now)
            self._free(buffer, out)
        else:
            chunk.contribute(rank, header.payload_crc, None, now)
            self._free(buffer, out)
            self._results.send(key, chunk, rank, 1, out)
        if not chunk.missing:
            if self._results.traced:
                chunk.round.note_wait(Wait(rank, chunk.half_at, now))
            chunk.begin_last()
            self._results.answer(key, chunk, chunk.result_crc, chunk.outcome, now, out)

    def _duplicate(
        self,
        key: KeyRounds,
        chunk: Chunk,
        rank: int,
        header: Header,
        buffer: Buffer | None,
        out: list[Output],
    ) -> None:
        """A second copy: drop it, and answer it from the cache if the chunk is complete."""
        if chunk.crcs[rank] != header.payload_crc:
            raise IntegrityError(
                f"rank {rank} sent two different contributions for key {key.label} round "
                f"{header.round} chunk {header.chunk}"
            )
        self._drop_duplicate(buffer, out)
        is_answered = chunk.holders is not None and rank not in chunk.holders
        if chunk.phase is Phase.COMPLETE or is_answered:
            self._results.send(key, chunk, rank, 1, out)

    def _drop_duplicate(self, buffer: Buffer | None, out: list[Output]) -> None:
        self.duplicates += 1
        self._free(buffer, out)

    def _free(self, buffer: Buffer | None, out: list[Output]) -> None:
        if buffer is not None:
            out.append(Free(self._seats.run, (buffer,)))


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
