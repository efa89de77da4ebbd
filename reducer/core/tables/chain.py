"""The log of a partition: each change goes to the partition's backup before it is carried out.

Laws:

- T12: if the partition has a backup, each answer to a worker and each pulled value is on the backup
  too. So a change is carried out when the backup has the change, in the order of the log.
- T13: a partition has one primary in a term. A backup refuses the log of an older term, so a
  replaced primary can carry out nothing more.
- A primary never goes on without its backup by itself: the workers decide that, by a new term.
- A spare is filled shard by shard. Once the spare is linked, changes of the shards that it has wait
  for the spare as for a backup: the workers may name a full spare the backup at any moment.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Free, Output, Send
from reducer.core.tables.place import Place
from reducer.wire.codes import SCALARS_BYTES, DType, Entry, MessageKind
from reducer.wire.header import NO_RANK, Crc, Header, pack_header
from reducer.wire.messages import encode
from reducer.wire.table_messages import TableCall

_LOG: Final = int(MessageKind.LOG)
_FLOAT32: Final = int(DType.FLOAT32)
_CALL: Final = int(Entry.CALL)


class Durable:
    """The work that waits until the backup has an entry of the log."""

    def durable(self, now: float, out: list[Output]) -> None:
        raise NotImplementedError

    def buffers(self) -> list[Buffer]:
        """The buffers to free if the entry never becomes durable."""
        return []


class LogEntry:
    """One entry. `buffer` must not change until the backup has the entry."""

    __slots__ = ("buffer", "frame", "length", "tail", "then")

    def __init__(
        self, frame: bytes, buffer: Buffer | None, length: int, tail: bytes, then: Durable | None
    ) -> None:
        self.frame = frame
        self.buffer = buffer
        self.length = length
        self.tail = tail
        self.then = then


class Chain:
    """`backup`: the place that gets the log, or None. `is_filling`: the place is a spare, no backup
    yet. `begun`: the term in which this log began; a place may have another log of this lane.

    `session`: the link to the place, once the place has told from where on it wants the log.
    `unshipped`: the shards that a spare does not have yet, as (table, shard); their changes are not
    logged.
    """

    def __init__(self, crc: Crc) -> None:
        self.term = 0
        self.begun = 0
        self.backup: Place | None = None
        self.is_filling = False
        self.session: int | None = None
        self.unshipped: set[tuple[int, int]] = set()
        self.position = 0  # the position of the last entry
        self.acked = 0  # the last position that the place has acknowledged
        self._waits_since = 0.0  # when the place last acknowledged an entry, or when the lag began
        self._has_begun = False  # whether the place was linked
        self._crc = crc
        self._entries: deque[LogEntry] = deque()  # the entries from acked + 1 on

    @property
    def is_logging(self) -> bool:
        """Whether changes wait for another place."""
        return self.backup is not None and (not self.is_filling or self._has_begun)

    @property
    def lag(self) -> int:
        """Entries that the place has not acknowledged."""
        return self.position - self.acked

    def waits(self, now: float) -> float:
        """Seconds since the place has last acknowledged an entry; 0 if no entry waits."""
        return max(0.0, now - self._waits_since) if self.lag else 0.0

    def call(
        self, call: TableCall, worker: int, then: Durable | None, now: float, out: list[Output]
    ) -> None:
        """Log a call that changes the tables."""
        if not self.is_logging:
            _go_on(then, now, out)
            return
        payload = encode(call)
        header = Header(
            _LOG, flags=_CALL, rank=worker & NO_RANK, length=len(payload),
            payload_crc=self._crc(payload),
        )  # fmt: skip
        self._put(header, None, 0, payload, then, now, out)

    def data(
        self,
        header: Header,
        buffer: Buffer | None,
        scalars: tuple[float, ...],
        then: Durable | None,
        now: float,
        out: list[Output],
    ) -> None:
        """Log an entry: a header, `header.length` bytes of the buffer, and scalars.

        The header's `flags` are an Entry. The chain owns the header from here on. Without `then`,
        the chain owns the buffer too, and frees it with the entry.
        """
        if not self.is_logging or (header.key, header.chunk) in self.unshipped:
            _go_on(then, now, out)
            return
        tail, length = b"", header.length
        if scalars:
            tail = struct.pack(f"<{len(scalars)}f", *scalars).ljust(SCALARS_BYTES, b"\0")
            header.payload_crc = self._crc(tail, header.payload_crc)
            header.length += len(tail)
        header.kind, header.dtype = _LOG, _FLOAT32
        self._put(header, buffer, length, tail, then, now, out)

    def _put(
        self,
        header: Header,
        buffer: Buffer | None,
        length: int,
        tail: bytes,
        then: Durable | None,
        now: float,
        out: list[Output],
    ) -> None:
        if not self.lag:
            self._waits_since = now
        self.position += 1
        header.stable = self.position
        header.route = self.term
        entry = LogEntry(pack_header(header, self._crc), buffer, length, tail, then)
        self._entries.append(entry)
        if self.session is not None:
            out.append(_send(self.session, entry))

    # --- the link -------------------------------------------------------------------------------

    def linked(self, session: int, has: int, now: float, out: list[Output]) -> None:
        """The place has the log up to `has`: send the entries behind."""
        self.session = session
        self._has_begun = True
        for entry in list(self._entries)[max(0, has - self.acked) :]:
            out.append(_send(session, entry))
        self.confirm(has, now, out)  # LOGGED may have been lost with the link before

    def unlinked(self) -> None:
        self.session = None

    def confirm(self, position: int, now: float, out: list[Output]) -> None:
        """The place has the log up to `position`: carry out the changes that waited for this."""
        while self.acked < position and self._entries:
            self._waits_since = now
            self.acked += 1
            self._end(self._entries.popleft(), now, out)

    # --- terms ----------------------------------------------------------------------------------

    def begin_term(
        self, term: int, backup: Place | None, is_filling: bool, now: float, out: list[Output]
    ) -> bool:
        """The workers have decided. Returns whether the log goes to another place now.

        The same place goes on with its log. For another place the log begins anew, and no change
        waits for the old place any more.
        """
        self.term = term
        self.is_filling = is_filling
        if backup == self.backup:
            return False
        self.begun = term
        self.backup = None
        self.session, self._has_begun = None, False
        entries, self._entries = self._entries, deque()
        self.position = self.acked = 0
        self.unshipped.clear()
        for entry in entries:
            self._end(entry, now, out)
        self.backup = backup
        return True

    def drop(self, out: list[Output]) -> None:
        """Another lane leads: entries that wait here never become durable."""
        self.backup, self.session = None, None
        entries, self._entries = self._entries, deque()
        self.unshipped.clear()
        for entry in entries:
            held = [] if entry.then is None else entry.then.buffers()
            if entry.then is None and entry.buffer is not None:
                held = [entry.buffer]
            if held:
                out.append(Free(0, tuple(held)))

    def _end(self, entry: LogEntry, now: float, out: list[Output]) -> None:
        if entry.then is not None:
            entry.then.durable(now, out)
        elif entry.buffer is not None:
            out.append(Free(0, (entry.buffer,)))


def _go_on(then: Durable | None, now: float, out: list[Output]) -> None:
    if then is not None:
        then.durable(now, out)


def _send(session: int, entry: LogEntry) -> Send:
    return Send(0, (session,), entry.frame, entry.buffer, entry.length, entry.tail)
