"""Takes the frames of a lane and gives each one to the object that waits for it."""

from __future__ import annotations

from typing import Protocol

from reducer.wire import errors as wire
from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.decoder import SKIP, Frame
from reducer.wire.header import HEADER_SIZE, Header
from reducer.wire.table_messages import Notice
from reducer_client.tables.calls import Call
from reducer_client.tables.outgoing import AnswerKey, Outgoing
from reducer_client.tables.pulls import Pull
from reducer_client.tables.shared import Shared


class Hears(Protocol):
    """Takes the frames that answer nothing. The lock is held for each method but `take_error`."""

    def take_open(self, notice: Notice) -> None: ...

    def take_news(self, notice: Notice) -> None: ...

    def take_refusal(self, notice: Notice) -> None: ...

    def take_error(self, error: messages.Error) -> None:
        """The lane has ended the connection with an error. Raises that error."""


class Inbox:
    """Used by the thread of one link. ``has_progress``: a push or a pull was answered."""

    def __init__(self, shared: Shared, outgoing: Outgoing, hears: Hears, where: str) -> None:
        self.has_progress = False
        self._shared = shared
        self._outgoing = outgoing
        self._hears = hears
        self._where = where
        self._receiving: Pull | None = None  # values of this one, into its memory

    def target(self, header: Header) -> memoryview:
        """Memory for a payload. The payload of a VALUE goes into the memory of its pull."""
        if header.kind != MessageKind.VALUE:
            return memoryview(bytearray(header.length + HEADER_SIZE))
        with self._shared.changed:
            item = self._outgoing.find(_pull_key(header))
            if item is None:
                return SKIP
            assert isinstance(item.waiter, Pull)
            item.waiter.check(header, self._where)
            self._receiving = item.waiter
            return self._receiving.begin_write(header)

    def end(self) -> None:
        """Nothing more comes: values that are not complete are received again, by another inbox."""
        with self._shared.changed:
            if self._receiving is not None:
                self._receiving.abandon_write()
                self._receiving = None

    def take(self, frame: Frame) -> None:
        """Handle a frame. Raises the error that the lane sent, or a wire error."""
        header, payload = frame.header, frame.payload
        kind = header.kind
        if kind == MessageKind.RECEIPT:
            self._take_receipt(header)
        elif kind == MessageKind.VALUE:
            self._take_value(header)
        elif kind == MessageKind.NOTICE:
            self._take_notice(header.key, messages.decode(Notice, payload or b""))
        elif kind == MessageKind.ERROR:
            self._hears.take_error(messages.decode(messages.Error, payload or b""))
        elif kind not in (MessageKind.HEARTBEAT, MessageKind.GOAWAY):
            raise wire.BadFrameError(f"{MessageKind(kind).name} on a connection for tables")

    def _take_receipt(self, header: Header) -> None:
        self.has_progress = True
        with self._shared.changed:
            item = self._outgoing.receipted(header)
            if item is not None and item.waiter is not None:
                item.waiter.answered(item, header)

    def _take_value(self, header: Header) -> None:
        self.has_progress = True
        with self._shared.changed:
            self._outgoing.answered(_pull_key(header))
            if self._receiving is not None:
                self._receiving.end_write(header)
                self._receiving = None

    def _take_notice(self, number: int, notice: Notice) -> None:
        with self._shared.changed:
            if notice.call == "open":
                self._hears.take_open(notice)
            elif not number:
                self._hears.take_news(notice)
            else:
                self._take_answer((int(MessageKind.TABLE), number, 0, 0), notice)
            self._shared.changed.notify_all()

    def _take_answer(self, key: AnswerKey, notice: Notice) -> None:
        outgoing = self._outgoing
        item = outgoing.find(key) if notice.more else outgoing.answered(key)
        if item is not None and isinstance(item.waiter, Call):
            item.waiter.take(notice)
        elif notice.code:
            self._hears.take_refusal(notice)


def _pull_key(header: Header) -> AnswerKey:
    return int(MessageKind.PULL), header.key, header.chunk, header.round
