"""Rounds that fail: descriptors that differ, the verdict, and ABANDON."""

from __future__ import annotations

import logging
from collections.abc import Collection

from reducer.core.rounds.descriptor import Descriptor
from reducer.core.rounds.round import Round
from reducer.core.rounds.texts import about, mismatch_text
from reducer.core.runs.flow import Flow
from reducer.core.runs.seats import Seats
from reducer.core.runs.terms import Terms
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Free, Log, Output, Send
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.header import Header


class Mismatches:
    """Voids rounds, and judges those whose chunk 0 this lane owns.

    Law: the owner of chunk 0 judges, one text goes to all ranks, and nothing is summed. Every
    record that is kept may raise RecordsError; the run then ends.
    """

    def __init__(self, terms: Terms, seats: Seats, flow: Flow) -> None:
        self._terms = terms
        self._open = flow.open
        self._seats = seats
        self._grants = flow.grants
        self._debts = flow.debts
        self.refused = 0  # rounds judged here

    def mismatch(self, round_: Round, out: list[Output]) -> None:
        """Two descriptors of the round differ."""
        if round_.stream.place.owns(round_.key.id, 0):
            self._open.begin_verdict(round_)
        self._void(round_, out)

    def discard(
        self,
        round_: Round,
        rank: int,
        header: Header,
        buffer: Buffer | None,
        cost: int,
        out: list[Output],
    ) -> None:
        """Drop a contribution to a void round, and charge its cost until the rank's ABANDON."""
        self._debts.add(round_, rank, cost)
        self.collect(round_, rank, header, out)
        if buffer is not None:
            out.append(Free(self._seats.run, (buffer,)))

    def collect(self, round_: Round, rank: int, header: Header, out: list[Output]) -> None:
        """Take a rank's descriptor. The last one completes the verdict, which goes to all ranks."""
        if round_.refused is not None:
            if rank not in round_.told:
                out.append(self._refuse(round_, (rank,)))
            return
        if not round_.collect(rank, Descriptor(header)):
            return
        assert round_.collected is not None
        text = mismatch_text(round_, round_.collected)
        round_.refuse(messages.Refused(int(ErrorCode.MISMATCH), text))
        self.refused += 1
        out.append(self._refuse(round_, self._seats.view.members))
        text = f"job {self._terms.title!r}: {text}"
        fields = {**self._terms.about(), **about(round_)}
        out.append(Log(self._seats.run, logging.WARNING, text, fields))
        self._open.end_verdict(round_)

    def abandon(self, round_: Round, rank: int, cause: messages.Abandon, out: list[Output]) -> None:
        """The rank has abandoned the round: settle the cost of what the rank has sent of it."""
        speakers = round_.speakers()
        if not round_.void:
            self._void(round_, out)
        self._debts.settle(round_, rank)
        round_.mark(round_.abandoned, rank)
        if round_.refused is None and round_.stream.place.owns(round_.key.id, 0):
            # Another lane gave the verdict and has died. Ranks that spoke here missed it.
            round_.refuse(messages.Refused(cause.code, cause.message))
            self.refused += 1
            self._open.end_verdict(round_)
            out.append(self._refuse(round_, speakers.difference(round_.abandoned)))

    def again(self, round_: Round, rank: int, out: list[Output]) -> None:
        """Repeat the verdict for a rank that may have missed it."""
        if rank not in round_.abandoned:
            out.append(self._refuse(round_, (rank,)))

    def forget(self, round_: Round) -> None:
        """Every rank has passed the round."""
        self._debts.settle_all(round_)
        self._open.end_verdict(round_)

    def _void(self, round_: Round, out: list[Output]) -> None:
        self._debts.note(round_, round_.unanswered())
        out.append(Free(self._seats.run, round_.make_void()))
        self._grants.end(round_, out)

    def _refuse(self, round_: Round, ranks: Collection[int]) -> Send:
        assert round_.refused is not None
        for rank in ranks:
            round_.mark(round_.told, rank)
        return self._seats.about(round_, ranks, round_.refused)
