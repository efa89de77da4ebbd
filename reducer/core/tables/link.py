"""The connection of a primary to its backup or spare: dialed, opened, watched, dialed again.

Laws:

- An unreachable backup blocks all changes, until the workers name another backup by a new term. So
  the primary tells the workers at once, and again with each beat (news `alone`).
- A primary ends if its backup says that it was replaced: another lane has the partition.
- A place that has the whole log is not filled again when the workers call it a spare: the workers
  took the place for lost, but its log was not lost.
"""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.surface.control_frames import control_frame, payload_frame
from reducer.core.surface.events import Close, Dial, Log, Output, Send
from reducer.core.tables.context import Context
from reducer.core.tables.links import LinkEvents
from reducer.core.tables.partition import Partition
from reducer.core.tables.refill import Refill
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.errors import ProtocolError
from reducer.wire.table_messages import Notice, TableCall

FIRST_WAIT: Final = 0.02  # seconds before the next attempt to connect, doubled each time
LONGEST_WAIT: Final = 0.5
BEAT: Final = 0.25
# Seconds without a frame after which the backup counts as lost. A backup answers each beat.
SILENCE: Final = 1.0


class Link(LinkEvents):
    """`refill` copies the partition while the place is a spare."""

    def __init__(self, context: Context, partition: Partition) -> None:
        self.refill: Refill | None = None
        self._context = context
        self._partition = partition
        self._chain = partition.chain
        self._dialing = 0
        self._session = 0
        self._next_try = 0.0
        self._wait = FIRST_WAIT
        self._beat_at = 0.0
        self._heard_at = 0.0
        self._linked_at = 0.0
        self._is_lost = False
        self._is_whole = False  # whether the place has everything

    def reset(self, now: float, out: list[Output]) -> None:
        """The log goes to another place, or to no place."""
        if self._session:
            out.append(Close(0, self._session, "the log goes elsewhere", at_once=True))
        self._context.links.forget(self._dialing, self._session)
        self._dialing = self._session = 0
        self._wait = FIRST_WAIT
        self._is_lost = False
        self._is_whole = not self._chain.is_filling
        self.refill = None
        self.maybe_dial(now, out)

    def maybe_dial(self, now: float, out: list[Output]) -> None:
        place = self._chain.backup
        if place is None or self._dialing or self._session or now < self._next_try:
            return
        self._dialing = self._context.links.dial(self)
        job = self._partition.job
        out.append(Dial(link=self._dialing, address=place.address, lane=place.lane, job=job))

    # --- events of the connection ---------------------------------------------------------------

    def dialed(self, session: int, now: float, out: list[Output]) -> None:
        place = self._chain.backup
        self._dialing = 0
        assert place is not None
        self._session = session
        self._heard_at = now
        partition = self._partition
        call = TableCall(
            "follow", job=partition.job, run_id=partition.run_id, partition=partition.partition,
            partitions=partition.partitions, term=self._chain.term, reducer=place.reducer,
            incarnation=self._context.settings.incarnation, filling=self._chain.is_filling,
            number=self._chain.begun,
        )  # fmt: skip
        frame = control_frame(call, self._context.crc, key=1)
        out.append(Send(0, (session,), frame, None, 0))

    def failed(self, reason: str, now: float, out: list[Output]) -> None:
        """The place was not reached."""
        self._dialing = 0
        self._wait_and_tell(reason, now, out)

    def disconnected(self, reason: str, now: float, out: list[Output]) -> None:
        """The connection broke and is made again. A place that followed is not lost yet.

        It is dialed at once: a process that has died refuses, and the workers can name another.
        """
        self._session = 0
        if self._chain.session is None:
            self._wait_and_tell(reason, now, out)
        else:
            has_lasted = now - self._linked_at > LONGEST_WAIT
            self._next_try = now if has_lasted else now + FIRST_WAIT
        self._chain.unlinked()
        self.maybe_dial(now, out)

    def notice(self, notice: Notice, now: float, out: list[Output]) -> None:
        """The answer to `follow`. Raises ProtocolError for any other notice."""
        if notice.call != "follow":
            raise ProtocolError(f"the notice {notice.call} came on a link between lanes")
        self._heard_at = self._linked_at = now
        self._wait = FIRST_WAIT
        self._is_lost = False
        self._chain.linked(self._session, notice.version, now, out)
        if not self._is_whole and self.refill is None:
            self.refill = Refill(self._context, self._partition)
            self.refill.begin(now, out)

    def logged(self, position: int, now: float, out: list[Output]) -> None:
        self._heard_at = now
        self._chain.confirm(position, now, out)

    def heard(self, now: float) -> None:
        self._heard_at = now

    def error(self, error: messages.Error, now: float, out: list[Output]) -> None:
        """The place refuses the log."""
        session, self._session = self._session, 0
        self._context.links.forget(0, session)
        self._chain.unlinked()
        out.append(Close(0, session, error.message))
        if error.code == ErrorCode.EVICTED:
            self._partition.retire(error.message, out)
            return
        self._wait_and_tell(error.message, now, out)

    def tick(self, now: float, out: list[Output]) -> None:
        if self._chain.backup is None:
            return
        self.maybe_dial(now, out)
        if now - self._beat_at < BEAT:
            return
        self._beat_at = now
        if self._session:
            beat = payload_frame(MessageKind.HEARTBEAT, b"", self._context.crc)
            out.append(Send(0, (self._session,), beat, None, 0))
        if self._session and now - self._heard_at > SILENCE:
            text = f"the backup was silent for {now - self._heard_at:.1f} s"
            out.append(Close(0, self._session, text, at_once=True))
            self._context.links.forget(0, self._session)
            self._session = 0
            self._chain.unlinked()
            self._lose(text, out)
        elif self._is_lost:
            self._tell("alone", out)
        if self.refill is not None:
            self.refill.go_on(now, out)
            self._is_whole = self.refill.is_over
        if self._chain.is_filling and self._is_whole and self._chain.session is not None:
            self._tell("filled", out)

    def _wait_and_tell(self, reason: str, now: float, out: list[Output]) -> None:
        """The place is lost. The wait before the next attempt is longer each time."""
        self._next_try = now + self._wait
        self._wait = min(LONGEST_WAIT, 2 * self._wait)
        self._lose(reason, out)

    def _lose(self, reason: str, out: list[Output]) -> None:
        if not self._is_lost:
            what = "spare" if self._chain.is_filling else "backup"
            text = (
                f"job {self._partition.job!r} partition {self._partition.partition}: the {what} is "
                f"lost: {reason}"
            )
            out.append(Log(0, logging.WARNING, text, {"job": self._partition.job}))
        self._is_lost = True
        self._tell("alone", out)

    def _tell(self, news: str, out: list[Output]) -> None:
        place = self._chain.backup
        assert place is not None
        self._partition.tell(
            Notice(
                news, partition=self._partition.partition, term=self._chain.term,
                backup_reducer=place.reducer,
            ),
            out,
        )  # fmt: skip
