"""Sends the result of a chunk to the ranks. `rounds/key.py` decides when it is forgotten."""

from __future__ import annotations

from reducer.core.measures.durations import Durations
from reducer.core.rounds.key_table import KeyRounds
from reducer.core.rounds.round import Chunk
from reducer.core.runs.flow import Accounts, Grants
from reducer.core.runs.seats import Seats
from reducer.core.runs.terms import Terms
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Free, Output, Send, Traced
from reducer.wire.codes import ALL_REDUCE, RESULT
from reducer.wire.header import NO_RANK, Crc, Header, pack_header


class Results:
    """`sent` counts RESULT frames, `bytes_out` their payloads, `rounds` complete rounds.

    `own_rounds`: those of `rounds` whose chunk 0 this lane owns. Over all lanes of all reducers,
    their sum counts each round once, also rounds of one chunk.
    `last_ranks[rank]`: rounds in which the rank came last. `nonfinite[rank]`: chunks in which the
    rank is the lowest whose contribution is not finite.
    """

    def __init__(
        self, terms: Terms, seats: Seats, accounts: Accounts, grants: Grants, crc: Crc, traced: bool
    ) -> None:
        self.traced = traced  # every round is reported when it is over (Traced)
        self.sent = 0
        self.bytes_out = 0
        self.rounds = 0
        self.own_rounds = 0
        self.last_ranks = [0] * terms.world_size
        self.nonfinite = [0] * terms.world_size
        self.durations = Durations()
        self._terms = terms
        self._world_size = terms.world_size
        self._number = terms.number
        self._seats = seats
        self._accounts = accounts
        self._grants = grants
        self._crc = crc

    def answer(
        self,
        key: KeyRounds,
        chunk: Chunk,
        crc: int,
        result: Buffer | None,
        now: float,
        out: list[Output],
    ) -> None:
        """The chunk is reduced: answer every rank, and keep the result until it is stable.

        If ranks held the result before, only they have not been answered yet.
        """
        round_ = chunk.round
        spent = chunk.complete(result, crc)
        if spent:
            out.append(Free(self._number, spent))
        key.keep(chunk)
        if chunk.holders is not None:
            for rank in chunk.holders:
                self._accounts.settle(rank, chunk.cost)
                self.send(key, chunk, rank, 1, out)
        else:
            self._accounts.settle_all(chunk.cost)
            # Lanes finish neighbouring chunks at the same time; each begins at another worker's
            # NIC.
            first = chunk.index % self._world_size
            if self.send(key, chunk, first, self._world_size, out) == round_.stream.view.count:
                round_.stream.untold.told(key)
        if chunk.culprit != NO_RANK:
            self.nonfinite[chunk.culprit] += 1
        if round_.left == 0:
            self.last_ranks[round_.last] += 1
            self.rounds += 1
            if round_.stream.place.owns(key.id, 0):
                self.own_rounds += 1
            self.durations.note(now - round_.opened_at)
            self._grants.end(round_, out)
            if self.traced:
                out.append(self._trace(key, chunk, now))

    def send(self, key: KeyRounds, chunk: Chunk, first: int, count: int, out: list[Output]) -> int:
        """Send RESULT to `count` ranks, from `first` on and around. Some ranks get an empty frame.

        Returns how many of the ranks are connected.
        """
        round_ = chunk.round
        plan, described = round_.plan, round_.descriptor
        assert plan is not None and described is not None
        size = plan.result_bytes(chunk.index)
        to_all = size > 0 and plan.collective == ALL_REDUCE
        holders = chunk.holders
        full: list[int] = []
        empty: list[int] = []
        for offset in range(count):
            rank = (first + offset) % self._world_size
            session = self._seats.sessions[rank]
            if session is not None:
                receives = to_all or plan.receives(chunk.index, rank, described.root)
                if holders is not None and rank in holders:
                    receives = False  # the rank has sent the result itself
                (full if receives else empty).append(session)
        header = Header(
            RESULT, described.dtype, described.op, described.collective, chunk.flags,
            chunk.culprit, described.root, self._seats.epoch, chunk.index, key.id, round_.number,
            described.count, chunk.origin, key.stable, size, round_.stream.since, chunk.result_crc,
        )  # fmt: skip
        if full:
            frame = pack_header(header, self._crc)
            out.append(Send(self._number, full, frame, chunk.outcome, size))
        if empty:
            frame = pack_header(header.replace(length=0, payload_crc=0), self._crc)
            out.append(Send(self._number, empty, frame, None, 0))
        self.sent += len(full) + len(empty)
        self.bytes_out += size * len(full)
        return len(full) + len(empty)

    def _trace(self, key: KeyRounds, chunk: Chunk, now: float) -> Traced:
        round_ = chunk.round
        assert round_.plan is not None and round_.wait is not None
        size = round_.plan.vector_bytes
        return Traced(
            self._number, self._terms.title, key.name or key.label, round_.number, size,
            round_.opened_at, round_.wait, round_.touched_at, now,
        )  # fmt: skip
