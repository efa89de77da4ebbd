"""The connection to the lane of one partition: a thread that connects, sends and receives.

Laws:

- The thread alone touches the socket. Callers put frames into `Outgoing` and wake it.
- The thread runs no code of the program, and holds the lock only for a moment.
- A lost connection is made again, until the lane has been out of reach for the limit. Then the link
  and everything that waits for the lane end with an error.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reducer.wire import errors as wire
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import (
    AuthenticationError,
    IntegrityError,
    ProtocolError,
    ReducerError,
    ReducerUnavailableError,
    from_engine,
)
from reducer_client.registry.dial import Dialer
from reducer_client.tables.calls import call_item, refusal
from reducer_client.tables.connection import Connection
from reducer_client.tables.inbox import Inbox
from reducer_client.tables.outgoing import Outgoing
from reducer_client.tables.places import Place, opening
from reducer_client.tables.shared import Shared, logger

FIRST_WAIT = 0.02  # seconds before the next attempt to connect, doubled each time
LONGEST_WAIT = 0.5
HEARTBEAT = 1.0  # seconds; at most a quarter of the silence that counts as a lost connection
CLOSE_SECONDS = 1.0  # time to send BYE
# The link ends after so many connections in a row that end by damaged bytes, or by an error that
# may come from damaged bytes, each within LONG_LIVED seconds and without progress.
MOST_DAMAGES = 10
LONG_LIVED = 10.0
_OPEN_NUMBER = 1  # number of the call `open` on each connection; other calls have higher numbers
# The checksum of a frame is computed just before the frame is sent, so that its bytes are still in
# the cache. So the next frame is taken when at most this many bytes are unsent.
_MOST_UNSENT = 256 << 10
# After these errors of a lane the connection is made again. After _MOVED it is made again if the
# partition may have moved.
_PASSING = (ErrorCode.UNAVAILABLE, ErrorCode.INTEGRITY, ErrorCode.CORRUPTED, ErrorCode.INTERNAL)
_MOVED = (ErrorCode.STATE_LOST, ErrorCode.EVICTED)


@dataclass(frozen=True)
class Limits:
    """Times in seconds. A connection without a byte for ``silence`` counts as lost."""

    connect_timeout: float
    reducer_wait: float
    silence: float


class LinkEvents(Protocol):
    """Takes the events of a link. The link holds the lock while it calls."""

    def opened(self, link: LaneLink, notice: Notice) -> None: ...

    def news(self, link: LaneLink, notice: Notice) -> None: ...

    def refused(self, link: LaneLink, notice: Notice) -> None: ...

    def suspected(self, link: LaneLink, has_lost_state: bool) -> None:
        """The lane of a partition that may move is out of reach, or is another process now."""

    def failed(self, link: LaneLink, error: ReducerError) -> None: ...


class LaneLink:
    """The link to the lane that has a partition now.

    Args:
        partition: its number; -1 for a link that only asks how many lanes a reducer has.
        find_place: tells where the partition lives now; the link holds the lock.
        dialer_to: makes the dialer to a place.
        hello: the first call on each connection.

    Attributes:
        place: the lane of the connection, or of the next attempt to connect.
        opened: the newest answer to `open`; None before the first answer.
        cause: why the link is not connected; "" while it is connected.
    """

    def __init__(
        self,
        partition: int,
        find_place: Callable[[], Place],
        dialer_to: Callable[[Place], Dialer],
        hello: TableCall,
        shared: Shared,
        events: LinkEvents,
        limits: Limits,
    ) -> None:
        self.outgoing = Outgoing()
        self.partition = partition
        self.place = find_place()
        self.opened: Notice | None = None
        self.cause = "not connected yet"
        self._find_place = find_place
        self._dialer_to = dialer_to
        self._hello = hello
        self._shared = shared
        self._events = events
        self._limits = limits
        self._down_since = time.monotonic()
        self._wait = 0.0  # seconds before the next attempt to connect
        self._damages = 0
        self._inbox: Inbox | None = None  # the inbox of the newest connection
        self._opened_at = 0.0
        self._is_closing = False
        self._is_woken = False
        self._is_moved = False
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        name = f"tables {self.place.address}/{self.place.lane}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- for callers ----------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that a frame waits to be sent. The caller holds the lock."""
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):  # the thread has ended
                self._near.send(b"\0")

    @property
    def where(self) -> str:
        return f"the reducer at {self.place.address}, lane {self.place.lane}"

    def moved(self) -> None:
        """The partition has another place. The caller holds the lock."""
        self._is_moved = True
        self.wake()

    def close(self) -> None:
        """Say BYE and end. The caller holds the lock; `join` waits for the end."""
        self._is_closing = True
        self._is_woken = False
        self.wake()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._talk(self._dial())
                except (OSError, ReducerError, wire.ReductionError) as error:
                    self._lost(error)
        except ReducerError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("internal error: the connection to %s ends", self.where)
            self._fail(ReducerError(f"internal error on the connection to {self.where}: {error!r}"))
        finally:
            self._near.close()
            self._far.close()

    def _dial(self) -> socket.socket:
        with self._shared.changed:
            self._is_moved = False
            place = self._find_place()
            self.place = place
        return self._dialer_to(self.place).dial(self._seconds_to_dial())

    def _fail(self, error: ReducerError) -> None:
        with self._shared.changed:
            self.cause = str(error)
            if not self._is_closing:
                self._events.failed(self, error)

    def _seconds_to_dial(self) -> float:
        return max(0.1, min(self._limits.silence, self._left()))

    def _left(self) -> float:
        """Seconds until a lane that is out of reach counts as gone."""
        return self._down_since + self._limit - time.monotonic()

    @property
    def _heartbeat(self) -> float:
        return min(HEARTBEAT, self._limits.silence / 4)

    @property
    def _limit(self) -> float:
        is_new = self.opened is None
        return self._limits.connect_timeout if is_new else self._limits.reducer_wait

    def _lost(self, error: Exception) -> None:
        """Wait before the next attempt to connect, or raise the error that ends the link."""
        if self._is_closing:
            return
        was_up = not self.cause
        if was_up:
            self._down_since = time.monotonic()
            logger.info("%s: the connection is lost: %s", self.where, error)
        self.cause = str(error) or type(error).__name__
        self._maybe_suspect(error, was_up)
        self._check_passing(error)
        if self._left() <= 0:
            raise ReducerUnavailableError(
                f"{self.where} cannot be reached for {self._limit:g} s: {self.cause}"
            )
        if was_up and self._down_since - self._opened_at > LONGEST_WAIT:
            return  # a process that has died refuses at once, and its partition may move
        self._wait = min(LONGEST_WAIT, 2 * self._wait or FIRST_WAIT)
        self._sleep(min(self._wait * random.uniform(0.5, 1.0), max(0.0, self._left())))

    def _maybe_suspect(self, error: Exception, was_up: bool) -> None:
        """A lost connection is no suspicion, but an attempt to connect that fails is one: before
        the partition moves, its primary is asked once more.
        """
        if not self.place.term:
            return
        has_lost_state = isinstance(error, _MovedError) and error.code == ErrorCode.STATE_LOST
        if has_lost_state or isinstance(error, _SilentError) or not was_up:
            with self._shared.changed:
                self._events.suspected(self, has_lost_state)

    def _check_passing(self, error: Exception) -> None:
        """Raises the error unless another attempt to connect may succeed.

        Damaged bytes look like a breach of the protocol to the side that reads them.
        """
        if isinstance(error, OSError):
            return
        if isinstance(error, wire.ReductionError):
            kind = ProtocolError if self.opened is None else IntegrityError
            error = kind(f"{self.where}: {error}")
        lived = time.monotonic() - self._opened_at
        has_progress = self._inbox is not None and self._inbox.has_progress
        self._damages = 1 if lived > LONG_LIVED or has_progress else self._damages + 1
        may_pass = isinstance(error, ProtocolError | IntegrityError | AuthenticationError)
        if self.opened is None or not may_pass or self._damages >= MOST_DAMAGES:
            raise error

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_closing and (left := until - time.monotonic()) > 0:
            self._far.settimeout(left)
            with contextlib.suppress(OSError):
                self._far.recv(64)
            self._far.setblocking(False)
            with self._shared.changed:
                self._is_woken = False

    def _talk(self, sock: socket.socket) -> None:
        """Use the connection until the link closes. Raises an error if the connection ends."""
        inbox = self._inbox = Inbox(self._shared, self.outgoing, self, self.where)
        connection = Connection(sock, self._far, inbox.target, inbox.take)
        try:
            hello = call_item(_OPEN_NUMBER, opening(self._hello, self.place))
            connection.put(hello.header, hello.payload)
            while not self._is_closing:
                self._drain_wakes()
                if self._is_moved:
                    raise ConnectionError("another reducer has the partition now")
                if not self.cause:
                    self._fill(connection)
                if not connection.step(self._next_due(connection)):
                    raise ConnectionError("the reducer closed the connection")
                self._look_at_clock(connection)
            connection.put(Header(kind=MessageKind.BYE))
            connection.flush(CLOSE_SECONDS)
        finally:
            connection.close()
            inbox.end()

    def _drain_wakes(self) -> None:
        with self._shared.changed:  # a frame that is put in from here on wakes the thread again
            if not self._is_woken:
                return
            self._is_woken = False
            with contextlib.suppress(BlockingIOError):
                self._far.recv(64)

    def _fill(self, connection: Connection) -> None:
        while connection.unsent <= _MOST_UNSENT:
            with self._shared.changed:
                item = self.outgoing.take()
                if item is None:
                    return
                if item.marks is not None:
                    item.header.done = item.marks[item.header.chunk]
            connection.put(item.header, item.payload)

    def _next_due(self, connection: Connection) -> float:
        now = time.monotonic()
        due = min(connection.sent_at + self._heartbeat, connection.alive_at + self._limits.silence)
        return max(0.0, due - now)

    def _look_at_clock(self, connection: Connection) -> None:
        now = time.monotonic()
        if now - connection.alive_at >= self._limits.silence:
            raise _SilentError(f"no byte came for {self._limits.silence:g} s")
        if now - connection.sent_at >= self._heartbeat and not connection.unsent and not self.cause:
            connection.put(Header(kind=MessageKind.HEARTBEAT))

    # --- events of the lane ---------------------------------------------------------------------

    def take_news(self, notice: Notice) -> None:
        self._events.news(self, notice)

    def take_refusal(self, notice: Notice) -> None:
        self._events.refused(self, notice)

    def take_open(self, notice: Notice) -> None:
        if notice.code:
            self._raise_if_passing(notice.code, notice.message)
            raise refusal(notice, self.where)
        self.outgoing.credit = notice.credit
        self._events.opened(self, notice)
        self.opened = notice
        self.cause = ""
        self._wait = 0.0
        self._opened_at = time.monotonic()

    def _raise_if_passing(self, code: int, message: str) -> None:
        if code in _PASSING:
            raise ConnectionError(message)
        if self.place.term and code in _MOVED:
            raise _MovedError(code, message)

    def take_error(self, error: messages.Error) -> None:
        self._raise_if_passing(error.code, error.message)
        text = f"{self.where}: {error.message}"
        raise from_engine((error.code, text, error.rank, error.reason, error.key, error.round))


class _MovedError(ConnectionError):
    """The lane does not have the partition in this term. ``code``: the lane's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _SilentError(ConnectionError):
    """No byte came within the silence limit."""
