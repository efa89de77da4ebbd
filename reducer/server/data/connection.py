"""A connection in a lane, of a worker or to another lane: bytes -> decoder -> shell, and back.

The event loop reads straight into the decoder's buffers. This module knows neither jobs nor rounds.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from reducer.core.limits.budget import LEAST_FRAMES
from reducer.core.surface.events import Contributed
from reducer.core.surface.permit import Permit
from reducer.server.data.outbox import BYTES_AT_ONCE, Outbox, Piece
from reducer.server.data.turns import SECONDS, Turns
from reducer.wire.codes import CHUNK_KINDS, CONTRIBUTION, HEARTBEAT, LOG, PUSH
from reducer.wire.decoder import SKIP, Decoder, Frame
from reducer.wire.errors import PEER_ERRORS, BadFrameError, ReductionError
from reducer.wire.header import HEADER_SIZE, Header

# A peer that is to read the last frames is cut off if it reads less than LINGER_BYTES in this time,
# because it keeps the memory of its run reserved. Closing at once would send RST if unread bytes
# are in the receive queue, and RST destroys bytes in flight.
LINGER_SECONDS: Final = 2.0
LINGER_BYTES: Final = 65_536
NO_REASON: Final = "no reason was given"  # a worker's ERROR may have an empty text
# The most bytes of one read after the end of a connection: all connections that are ending may send
# at once.
READ_BYTES: Final = 16_384
_DISCARD: Final = bytearray(READ_BYTES)
# What every read takes of a turn, whatever its size, for the loop's own work. The kernel's time to
# copy the bytes is measured in addition: 0.1 ms for 1 MiB, or 0.5 ms into new memory.
READ_SECONDS: Final = 4e-6
# Bytes of a HEARTBEAT that are handled at once: 256 entries, each of which may make a key. A key
# takes memory for each rank, so the part is smaller in runs of more than RANKS_OF_PART ranks.
HEARTBEAT_PART: Final = 4_096
RANKS_OF_PART: Final = 256
_LEAST_PART: Final = 128
_ENTRY: Final = 16
_CHUNKS: Final = (CONTRIBUTION, PUSH, LOG)  # those that workers send
clock: Final = time.monotonic


class Owner:
    """Receives the events of a connection: frames, requests for a later call, the end.

    The lane's shell implements this class. Connections know nothing else, so data goes one way:
    connection -> shell -> core -> shell -> executor -> connection -> outbox.
    """

    def __init__(self, crc32c: Callable[..., int], turns: Turns) -> None:
        self.crc32c = crc32c
        self.turns = turns

    def opened(self, connection: Connection) -> None:
        raise NotImplementedError

    def place(self, connection: Connection, header: Header) -> Contributed | None:
        """Returns where to read a contribution; None: discard its payload."""
        raise NotImplementedError

    def admit_long(self, connection: Connection, header: Header) -> None:
        """Raises if no memory may be taken for a long control frame."""
        raise NotImplementedError

    def contributed(
        self,
        connection: Connection,
        header: Header,
        arrived: Contributed | None,
        now: float,
    ) -> None:
        raise NotImplementedError

    def control(self, connection: Connection, frame: Frame, now: float) -> None:
        raise NotImplementedError

    def release(self, arriving: Contributed) -> None:
        """Takes back the memory of a contribution that will not be complete."""
        raise NotImplementedError

    def world_size_of(self, connection: Connection) -> int:
        raise NotImplementedError

    def catch_up(self, connection: Connection) -> None:
        raise NotImplementedError

    def may_write(self, connection: Connection) -> bool:
        raise NotImplementedError

    def flush(self, connection: Connection) -> None:
        """Calls `Connection.flush` within the turn of its job."""
        raise NotImplementedError

    def flush_soon(self, connection: Connection) -> None:
        raise NotImplementedError

    def end_soon(self, connection: Connection) -> None:
        """Calls `Connection.end` in one of the next passes of the loop."""
        raise NotImplementedError

    def clean_up_soon(self, connection: Connection) -> None:
        """Calls `Connection.clean_up` in one of the next passes of the loop."""
        raise NotImplementedError

    def discard_soon(self, connection: Connection) -> None:
        """Calls `Connection.resume_reading` in one of the next passes of the loop."""
        raise NotImplementedError

    def discarded(self) -> None:
        """Counts one read of bytes that came after the end of a connection."""
        raise NotImplementedError

    def broken(self, connection: Connection, error: ReductionError) -> None:
        raise NotImplementedError

    def failed(self, connection: Connection, error: Exception) -> None:
        raise NotImplementedError

    def drop_slow_reader(self, connection: Connection, why: str) -> None:
        raise NotImplementedError

    def disconnected(self, connection: Connection, reason: str) -> None:
        raise NotImplementedError


class Connection:
    """Opened -> frames -> closing (reads and discards until the peer closes) -> disconnected.

    This class has the methods of an `asyncio.BufferedProtocol` and not the base: uvloop needs only
    the methods, and a compiled class cannot have an interpreted base.

    `link`: the number of the Dial that the connection answers; 0 if the peer has connected. `job`:
    the job of the Dial.
    """

    def __init__(
        self,
        owner: Owner,
        session: int,
        permit: Permit | None = None,
        link: int = 0,
        job: str = "",
    ) -> None:
        self.session = session
        self.permit = permit
        self.link = link
        self.bytes_in = 0
        self.bytes_noted = 0  # `bytes_in` at the shell's last tick
        self.bytes_out = 0
        self.overhead = 0  # bytes that TLS has added to `bytes_out`
        self.can_wait = False  # for its flush: only the tick has queued frames
        self.unread = 0  # upper bound of `held`, from the last frame
        self.slack = LEAST_FRAMES  # how many unread bytes are always allowed
        self.reads_since = 0.0  # when the last buffer was given
        if permit is not None and not job:
            job = permit.only_job
        self.turn = owner.turns.enter(job)
        self._owner = owner
        self._decoder = Decoder(owner.crc32c, self._target)
        self._arriving: Contributed | None = None  # has its memory, and is not complete
        self._outbox = Outbox()
        self._large: deque[tuple[int, int]] = deque()  # large frames: where each begins and ends
        self._will_flush = False
        self.is_full = False  # the transport has bytes that the kernel did not take
        self._transport: asyncio.Transport | None = None
        self._closing = ""
        self._must_cut_off = False
        self._is_slow_reader = False
        self._aborted = False
        self._linger: asyncio.TimerHandle | None = None
        self._why_disconnected: Exception | None = None
        self._reads_later = False
        self._is_cut = False  # the transport is gone, and `clean_up` is to come
        self._is_cleaned_up = False
        self._is_behind = False
        self._soon: asyncio.Handle | None = None  # the call of `go_on`
        self._held = False
        self._rest: Frame | None = None  # the rest of a HEARTBEAT
        self._is_read = False  # bytes that were read wait for the next turn
        self._sent_mark = 0
        self._sent_at = 0.0
        self._answer_end = 0  # `_sent` when the kernel has the last answer to STATS

    @property
    def is_made(self) -> bool:
        """Whether the loop has set the transport."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._transport.set_write_buffer_limits(0)  # pause_writing as soon as a byte is left
            self._owner.opened(self)
        except Exception as error:
            self.fail(error)

    # `fail` handles errors in the next two methods. The loop would hide an OSError.

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        try:
            if self._closing:
                return _DISCARD
            room = self._decoder.get_buffer()
            self.reads_since = clock()
            return room if self.turn.spent < SECONDS else room[:1]
        except Exception as error:
            self.fail(error)
            return _DISCARD

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._take_bytes(nbytes)
        except Exception as error:
            self.fail(error)

    def _take_bytes(self, nbytes: int) -> None:
        if self._closing:
            self._owner.discarded()
            self._read_later()
            return
        self.bytes_in += nbytes
        self._decoder.received(nbytes)
        seconds = READ_SECONDS + (clock() - self.reads_since)
        self._owner.turns.begin(self.turn)
        if self.turn.spent + seconds < SECONDS:
            self._take_frames(seconds)
        else:  # the turn is over: the frames wait for the next one
            self._is_read = True
            self.spend(seconds)

    def _take_frames(self, reading: float = 0.0) -> None:
        """Handle frames until none is left or the turn is over; reads took `reading` seconds."""
        turn = self.turn
        self._owner.turns.begin(turn)
        self._is_read = False
        now = clock()
        started = now - reading
        try:
            while not self._closing and (frame := self._next_frame()) is not None:
                if frame.header.kind in _CHUNKS:
                    arrived = None
                    if frame.payload is not None:
                        arrived, self._arriving = self._arriving, None
                    self._owner.contributed(self, frame.header, arrived, now)
                else:
                    self._owner.control(self, frame, now)
                now = clock()
                if self.turn.spent + (now - started) >= SECONDS:  # `spend` finds the same below
                    self._is_read = True
                    break
        except PEER_ERRORS as error:
            self._owner.broken(self, error)
            now = clock()
        except Exception as bug:  # mypyc: one name has one type
            self.fail(bug)
            now = clock()
        if self.turn is not turn:  # a HELLO has changed the job: charge both
            self._owner.turns.charge(turn, now - started)
        self.spend(now - started)

    @property
    def has_chunks(self) -> bool:
        """Whether a contribution has arrived: then the run has formed and has reserved memory."""
        return self._decoder.has_chunks

    def _next_frame(self) -> Frame | None:
        """The next frame. A long HEARTBEAT comes in parts, each as a frame of its own."""
        frame = self._rest
        if frame is None:
            frame = self._decoder.next_frame()
            if frame is None or frame.header.kind != HEARTBEAT:
                return frame
        payload = frame.payload
        if payload is None or len(payload) <= (part := self._heartbeat_part(len(payload))):
            self._rest = None
            return frame
        self._rest = Frame(frame.header, payload[part:])
        return Frame(frame.header, payload[:part])

    def _heartbeat_part(self, size: int) -> int:
        """How many bytes of a HEARTBEAT of `size` bytes are handled at once, in whole entries."""
        if size <= _LEAST_PART:
            return size
        ranks = max(RANKS_OF_PART, self._owner.world_size_of(self))
        return max(_LEAST_PART, HEARTBEAT_PART * RANKS_OF_PART // ranks // _ENTRY * _ENTRY)

    def spend(self, seconds: float) -> bool:
        """Charge the connection's job for work of the lane. Returns whether the turn is over."""
        turns = self._owner.turns
        if not turns.charge(self.turn, seconds):
            return False
        turns.wait(self.turn, self)
        return True

    def refuse(self, what: str) -> None:
        """The peer misused the transport: send the reason, and end the session."""
        self._owner.broken(self, BadFrameError(what))

    def fail(self, error: Exception) -> None:
        """An internal error: bytes may be lost, so the session ends."""
        self._owner.failed(self, error)

    def _read_later(self) -> None:
        """The connection is closing: the owner reads and discards what still comes, in turns."""
        transport = self._open_transport()
        if transport is not None and not self._reads_later:
            transport.pause_reading()
            self._owner.discard_soon(self)
            self._reads_later = True

    def resume_reading(self) -> None:
        self._reads_later = False
        transport = self._open_transport()
        if transport is not None and not self._held:  # else `resume` calls this again
            transport.resume_reading()

    def _open_transport(self) -> asyncio.Transport | None:
        transport = self._transport
        if transport is None or self._is_cut or transport.is_closing():
            return None
        return transport

    def set_job(self, job: str) -> None:
        """The connection belongs to the job from now on. Its proof may have said so before."""
        if job == self.turn.job:
            return
        before, self.turn = self.turn, self._owner.turns.enter(job)
        self._owner.turns.leave(before, self)

    def hold(self) -> None:
        """Read nothing and do nothing for the connection until `resume`."""
        transport = self._transport
        if transport is not None and not self._closing and not transport.is_closing():
            self._held = True
            transport.pause_reading()

    def resume(self) -> None:
        if not self._held or self._transport is None:
            return
        self._held = False
        try:
            self.go_on()
            if self._closing:
                self._read_later()
            else:
                self.resume_reading()
        except Exception as error:
            self.fail(error)

    def go_on(self) -> None:
        """Do the work that an earlier turn has left, unless the job's turn is over."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._held or self._closing:
            return
        self._owner.turns.begin(self.turn)
        if self.turn.is_over:
            self._owner.turns.wait(self.turn, self)
            return
        if self._is_behind:
            self._is_behind = False
            started = clock()
            self._owner.catch_up(self)
            self.spend(clock() - started)
        if self._is_read and not self._held:
            self._take_frames()

    def go_on_soon(self) -> None:
        """Schedule the next part of the work that the run is behind with, in this connection's
        turn.
        """
        self._is_behind = True
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._go_on_now)

    def _go_on_now(self) -> None:
        try:
            self.go_on()
        except Exception as error:
            self.fail(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The transport is full. Credits and the limit of unread bytes bound the queue."""
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        try:
            if self._outbox.size and self._closing:
                self._owner.end_soon(self)
            elif self._outbox.size:
                self._flush_soon()
        except Exception as error:
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._why_disconnected = exc
        self._is_cut = True
        if self._linger:
            self._linger.cancel()
        try:
            self._owner.clean_up_soon(self)
        except Exception:
            self.clean_up()
            raise

    def clean_up(self) -> None:
        """The transport is gone: handle the last frames, then end. A second call does nothing."""
        if self._is_cleaned_up:
            return
        self._is_cleaned_up = True
        exc, self._why_disconnected = self._why_disconnected, None
        try:
            if self._is_read and not self._closing:
                self._take_frames()
            self._closing = self._closing or str(exc or "")
        finally:  # else the memory of the run would stay reserved forever
            who = "other lane" if self.link else "worker"
            self._closing = self._closing or f"the {who} closed the connection"
            try:
                self._owner.disconnected(self, self._closing)
            finally:
                self._forget()

    def _forget(self) -> None:
        """Break reference cycles: only an idle lane collects them."""
        self._transport = self._linger = self._rest = None
        self._release_arriving()
        self._decoder.end()
        self._outbox.clear()

    def _release_arriving(self) -> None:
        """Give back the buffer of a contribution that is not complete."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._owner.release(arriving)

    def send(self, frame: list[Piece], length: int) -> int:
        """Queue one frame of `length` bytes; its pieces must stay unchanged until they are sent.

        Returns an upper bound of `held`.
        """
        if self._transport is None or self._closing:
            return 0
        unsent = self.unsent()
        if not unsent:
            self._sent_at = clock()
            self._sent_mark = self.bytes_out + self.overhead
        self._outbox.add(frame, length)
        if length > BYTES_AT_ONCE:
            self._large.append((self.bytes_out, self.bytes_out + length))
        self.bytes_out += length
        if not self.is_full:
            self._send_on()
        self.unread = unsent + length if not self._large else self.held()
        return self.unread

    def _send_on(self) -> None:
        if self._outbox.size >= BYTES_AT_ONCE and self._owner.may_write(self):
            self._owner.flush(self)
        elif not self._will_flush or self.can_wait:
            self._flush_soon()

    @property
    def waiting(self) -> int:
        """Bytes that the transport was not given yet."""
        return self._outbox.size

    @property
    def backlog(self) -> int:
        """Bytes that the transport has and the kernel did not take."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _flush_soon(self) -> None:
        self._owner.flush_soon(self)
        self._will_flush = True

    def flush(self) -> None:
        """Hand a part of the queued frames to the transport; the rest follows in later turns.

        A full transport gets nothing until it has sent everything: each write that it keeps takes
        memory, and time at the end of the connection.
        """
        self._will_flush = False
        if self.is_full or self._must_cut_off or not self._outbox.size:
            return
        if self._transport is None or self._transport.is_closing():
            self._outbox.clear()
            return
        try:
            self._transport.writelines(self._outbox.take())
            if self._outbox.size and not self.is_full and not self._closing:  # else `end` continues
                self._flush_soon()
        except Exception:  # nothing may follow these frames, even if `abort` fails
            self._closing = self._closing or "writing to it failed"
            raise

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called. After that nothing is read or sent."""
        return bool(self._closing)

    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._outbox.size + self.backlog

    def held(self) -> int:
        """`unsent` and the memory that it keeps: a large frame stays whole until its last byte.

        The pieces of a large frame go to the transport one after another. Sent parts of smaller
        frames keep less than BYTES_AT_ONCE, which is not counted.
        """
        unsent = self.unsent()
        sent = self.bytes_out - unsent
        while self._large and self._large[0][1] <= sent:
            self._large.popleft()
        return unsent + max(0, sent - self._large[0][0]) if self._large else unsent

    def stuck_for(self, now: float) -> float:
        """Seconds since the kernel last took a queued byte; 0 if nothing is queued."""
        sent = self._sent()
        if not self.unsent() or sent != self._sent_mark:
            self._sent_mark, self._sent_at = sent, now
        return now - self._sent_at

    def may_ask(self) -> bool:
        """Whether a STATS may be answered: the kernel has taken the answer to the last STATS."""
        return self._sent() >= self._answer_end

    def note_stats_answer(self) -> None:
        """The last frame in the queue is the answer to a STATS."""
        self._answer_end = self.bytes_out + self.overhead

    def _sent(self) -> int:
        """Bytes that the kernel has taken."""
        return self.bytes_out + self.overhead - self.unsent()

    def close(self, reason: str) -> None:
        """Handle no more frames, and call `end` soon."""
        if self._closing or self._transport is None:
            return
        self._closing = reason or NO_REASON
        self._release_arriving()
        self._owner.end_soon(self)
        try:  # noqa: SIM105  # suppress() takes memory, which may be what has ended
            self._read_later()
        except Exception:  # the connection ends anyway
            pass

    def note_slow_reader(self, what: str) -> None:
        """The peer does not read: cut it off soon."""
        if not self._closing:
            self._is_slow_reader = True
            self.cut_off_soon(f"slow reader: {what}")

    def cut_off_soon(self, why: str) -> None:
        """Send nothing more, and cut the connection off in a later pass of the event loop.

        A run of thousands of workers may end at once, and then ends in parts.
        """
        if self._must_cut_off or self._aborted or self._transport is None:
            return
        self._owner.end_soon(self)  # first: without this, a closing connection never ends
        self._must_cut_off = True
        self._closing = self._closing or why or NO_REASON

    def end(self) -> None:
        """Send the queued frames, then end. A peer that stops reading is cut off."""
        if self._must_cut_off:  # first: the peer's EOF closes the transport too
            self._cut_off()
            return
        transport = self._transport
        if transport is None or self._is_cut:
            return
        self.flush()
        if transport.is_closing() or self._outbox.size:
            if self.is_full and self._linger is None:
                self._linger_if_open(transport)
            elif not self.is_full and self._outbox.size:
                self._owner.end_soon(self)
            return  # a full transport continues with `resume_writing`
        if self._linger is not None:
            self._linger.cancel()
        self._owner.turns.release(self.turn, self)  # else the peer's end would not be noticed
        if transport.can_write_eof():
            transport.write_eof()
        self._linger_if_open(transport)

    def _cut_off(self) -> None:
        if self._is_slow_reader:
            self._owner.drop_slow_reader(self, self._closing)
        else:
            self.abort(self._closing)

    def _linger_if_open(self, transport: asyncio.Transport) -> None:
        """A write that has failed closes the socket, and nothing waits for the peer then."""
        if transport.get_extra_info("socket").fileno() >= 0:
            self._linger_on(transport, self._unread(transport))

    def _linger_on(self, transport: asyncio.Transport, unread: int) -> None:
        loop = asyncio.get_running_loop()
        self._linger = loop.call_later(LINGER_SECONDS, self._maybe_cut_off, transport, unread)

    def _maybe_cut_off(self, transport: asyncio.Transport, before: int) -> None:
        try:
            unread = self._unread(transport)
            took = before - unread
            if took >= LINGER_BYTES or (took and not unread):
                self._linger_on(transport, unread)
            else:
                self.cut_off_soon(self._closing)
        except Exception:  # no timer is left
            transport.abort()
            raise

    def _unread(self, transport: asyncio.Transport) -> int:
        """Bytes that the peer has not acknowledged: in the lane's queue and in the kernel's."""
        queued = bytearray(4)
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self.unsent() + int.from_bytes(queued, sys.byteorder)

    def abort(self, reason: str) -> bool:
        """End now and drop the queued frames. Returns False if `abort` was called before."""
        if self._aborted or self._transport is None:
            return False
        self._aborted = True
        self._closing = self._closing or reason or NO_REASON
        try:
            self._outbox.clear()
            self._release_arriving()
        finally:
            self._transport.abort()
        return True

    def _target(self, header: Header) -> memoryview:
        if header.kind not in CHUNK_KINDS:
            self._owner.admit_long(self, header)
            return memoryview(bytearray(header.length + HEADER_SIZE))
        arriving = self._owner.place(self, header)
        if arriving is None or arriving.buffer is None:
            return SKIP
        self._arriving = arriving
        return arriving.buffer.view
