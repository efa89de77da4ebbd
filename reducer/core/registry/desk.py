"""Answers the calls of the registry (PROTOCOL.md, section 15).

Laws:

- A document is shown to nobody, and a compare-and-set is answered by nobody, before the document is
  in the file. While a write is under way, calls of compare-and-set wait; the next write has all of
  them. So a registry that dies has told nobody of a document that is lost with it.
- A record belongs to the job that its session has proven. No call names another job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from reducer.core.registry.watches import Watch, Watches
from reducer.core.surface.control_frames import payload_frame
from reducer.core.surface.events import Log, Output, Send, Store, Stored
from reducer.core.surface.settings import LaneSettings
from reducer.registry import limits
from reducer.registry.records import Document, Key, Records
from reducer.wire import messages
from reducer.wire.codes import MAX_CONTROL_BYTES, MAX_DOCUMENT_BYTES, ErrorCode, MessageKind
from reducer.wire.errors import QuotaError

MAX_WATCHES: Final = 64  # of one session
MAX_SETS: Final = 16  # of one session, without an answer
# Bytes of an answer that other fields than the document, the leases and the holders may take.
_FIELDS_BYTES: Final = 1_024
# Of msgpack, for a lease besides its texts. A frame then has fewer values than its limit.
_ITEM_BYTES: Final = 16
LATE_TICK: Final = 0.5  # as in `ticks.py`

Entries = tuple[tuple[tuple[str, bytes], ...], tuple[str, ...]]  # leases, holders that are gone


class _Set(NamedTuple):
    """A compare-and-set that waits for its turn or for the file."""

    session: int
    number: int
    key: Key
    known: int
    call: messages.RegistryCall


class Desk:
    """The registry of a lane; without one in the settings, `is_open` is False."""

    def __init__(self, settings: LaneSettings) -> None:
        self._crc = settings.crc32c
        self._boot = settings.incarnation
        self._contents = settings.registry_contents
        self._records = Records({}, 0, 0.0)
        self._is_filled = False
        self._watches = Watches()
        self._waiting: list[_Set] = []
        self._waiting_bytes: dict[str, int] = {}  # of documents, by job
        self._waiting_of: dict[int, int] = {}  # by session
        self._storing: list[tuple[_Set, bool]] = []  # each with whether it was successful
        self._staged: dict[Key, Document] = {}
        self._ticked_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._contents is not None

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self._records)

    def take(
        self,
        session: int,
        job: str,
        number: int,
        call: messages.RegistryCall,
        now: float,
        out: list[Output],
    ) -> None:
        """Answer the call, or let it wait."""
        self._fill(now)
        try:
            self._take(session, job, number, call, now, out)
        except QuotaError as error:
            out.append(self._refusal(session, number, ErrorCode.QUOTA, str(error)))
        self._wake(now, out)

    def _take(
        self,
        session: int,
        job: str,
        number: int,
        call: messages.RegistryCall,
        now: float,
        out: list[Output],
    ) -> None:
        known = call.revision if call.boot == self._boot else -1
        key = (job, call.name)
        if call.call == "open":
            out.append(self._send(session, number, messages.RegistryRecord()))
            return
        limits.check_name(call.name)
        if call.call == "get":
            self._get(Watch(session, number, key, known, now), call.milliseconds / 1000, out)
        elif call.call == "cas":
            self._queue(_Set(session, number, key, known, call))
            self._maybe_store(now, out)
        else:
            self._lease(session, number, key, call, now, out)

    def _get(self, watch: Watch, seconds: float, out: list[Output]) -> None:
        now = watch.until
        if seconds <= 0 or watch.known != self._records.revision(watch.key):
            self._answer(watch.session, watch.number, watch.key, watch.known, True, now, out)
            return
        if self._watches.count(watch.session) >= MAX_WATCHES:
            raise QuotaError(f"this connection has {MAX_WATCHES} calls that wait, the limit")
        seconds = min(seconds, limits.MOST_WAIT_SECONDS)
        self._watches.add(watch._replace(until=now + seconds))

    def _lease(
        self,
        session: int,
        number: int,
        key: Key,
        call: messages.RegistryCall,
        now: float,
        out: list[Output],
    ) -> None:
        if call.milliseconds:
            seconds = call.milliseconds / 1000
            changed = self._records.lease(key, call.holder, call.value, seconds, now)
        else:
            changed = self._records.release(key, call.holder, now)
        if changed:
            self._watches.note_change(key)
        out.append(self._send(session, number, messages.RegistryRecord()))

    # --- documents ------------------------------------------------------------------------------

    def _queue(self, wanted: _Set) -> None:
        count = self._waiting_of.get(wanted.session, 0) + 1
        if count > MAX_SETS:
            raise QuotaError(f"this connection has {MAX_SETS} changes without an answer, the limit")
        job, size = wanted.key[0], len(wanted.call.value)
        waiting = self._waiting_bytes.get(job, 0) + size
        if waiting > limits.MAX_BYTES_OF_JOB:
            raise QuotaError(
                f"job {job!r} has changes of {waiting:,} bytes that wait for the disk, the limit "
                f"is {limits.MAX_BYTES_OF_JOB:,}: try again"
            )
        self._waiting_bytes[job] = waiting
        self._waiting_of[wanted.session] = count
        self._waiting.append(wanted)

    def _maybe_store(self, now: float, out: list[Output]) -> None:
        """Begin a write with all waiting calls, unless one is under way."""
        while self._waiting and not self._storing:
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes.clear()
            self._waiting_of.clear()
            for wanted in waiting:
                self._stage(wanted, now, out)
            if self._staged:
                documents = {**dict(self._records.documents()), **self._staged}
                out.append(Store(0, self._records.floor, tuple(documents.items())))
            else:
                self._end_sets(now, out)

    def _stage(self, wanted: _Set, now: float, out: list[Output]) -> None:
        key, call = wanted.key, wanted.call
        before = self._staged.get(key) or self._records.document(key)
        done = bool(call.token) and call.token in before.tokens  # the answer was lost
        assert self._contents is not None
        is_meant = call.incarnation in (b"", self._contents.incarnation)
        if not done and is_meant and before.version == call.version:
            try:
                document = self._records.next_document(key, before, call.value, call.token, now)
            except QuotaError as error:
                out.append(
                    self._refusal(wanted.session, wanted.number, ErrorCode.QUOTA, str(error))
                )
                return
            self._staged[key] = document
            done = True
        self._storing.append((wanted, done))

    def stored(self, event: Stored, now: float) -> list[Output]:
        """The write is over: show the documents, answer, and begin the next write."""
        out: list[Output] = []
        if event.error:
            self._staged.clear()
            sets, self._storing = self._storing, []
            text = f"the registry could not write its file: {event.error}"
            out.append(Log(0, logging.ERROR, text))
            for wanted, _ in sets:
                more = f"{text}. The document has not changed"
                out.append(
                    self._refusal(wanted.session, wanted.number, ErrorCode.UNAVAILABLE, more)
                )
        else:
            self._end_sets(now, out)
        self._maybe_store(now, out)
        self._wake(now, out)
        return out

    def _end_sets(self, now: float, out: list[Output]) -> None:
        staged, self._staged = self._staged, {}
        for key, document in staged.items():
            self._records.set_document(key, document, now)
            self._watches.note_change(key)
        sets, self._storing = self._storing, []
        for wanted, done in sets:
            self._answer(wanted.session, wanted.number, wanted.key, wanted.known, done, now, out)

    # --- time and sessions ----------------------------------------------------------------------

    def tick(self, now: float) -> list[Output]:
        """End leases that were not renewed, and calls whose time is over."""
        if not self.is_open:
            return []
        out: list[Output] = []
        self._fill(now)
        if now - self._ticked_at > LATE_TICK:
            self._records.shift_clocks(now - self._ticked_at)
        self._ticked_at = now
        for key in self._records.expire(now):
            self._watches.note_change(key)
        self._end_watches(self._watches.take_over(now), now, out)
        self._wake(now, out)
        return out

    def forget(self, session: int) -> None:
        """The session has ended. Its leases stay until they lapse: it may connect again."""
        self._watches.forget(session)

    def _fill(self, now: float) -> None:
        if not self._is_filled and self._contents is not None:
            self._is_filled = True
            self._ticked_at = now
            self._records = Records(self._contents.documents, self._contents.floor, now)

    def _wake(self, now: float, out: list[Output]) -> None:
        self._end_watches(self._watches.take_due(now, self._records.revision), now, out)

    def _end_watches(self, watches: list[Watch], now: float, out: list[Output]) -> None:
        made: dict[tuple[Key, int], list[bytes]] = {}  # many watchers know the same
        for watch in watches:
            payloads = made.get((watch.key, watch.known))
            if payloads is None:
                payloads = self._payloads(watch.key, watch.known, True, now)
                made[watch.key, watch.known] = payloads
            out.append(self._frames(watch.session, watch.number, payloads))

    # --- answers --------------------------------------------------------------------------------

    def _answer(
        self,
        session: int,
        number: int,
        key: Key,
        known: int,
        done: bool,
        now: float,
        out: list[Output],
    ) -> None:
        out.append(self._frames(session, number, self._payloads(key, known, done, now)))

    def _refusal(self, session: int, number: int, code: ErrorCode, text: str) -> Send:
        answer = messages.RegistryRecord(code=int(code), message=text[:4_000], done=False)
        return self._send(session, number, answer)

    def _send(self, session: int, number: int, answer: messages.RegistryRecord) -> Send:
        return self._frames(session, number, [messages.encode(answer)])

    def _frames(self, session: int, number: int, payloads: list[bytes]) -> Send:
        frames = [
            payload_frame(MessageKind.RECORD, payload, self._crc, key=number)
            for payload in payloads
        ]
        return Send(0, (session,), b"".join(frames), None, 0)

    def _payloads(self, key: Key, known: int, done: bool, now: float) -> list[bytes]:
        """The maps of an answer with the changes since `known`: one, or more if they are large."""
        assert self._contents is not None
        changes = self._records.changes(key, known, now)
        value = b"" if changes.document is None else changes.document.value
        version = self._records.document(key).version
        parts = list(_parts(changes.leases, changes.gone, len(value)))
        return [
            messages.encode(
                messages.RegistryRecord(
                    done=done,
                    more=number + 1 < len(parts),
                    incarnation=self._contents.incarnation,
                    boot=self._boot,
                    revision=changes.revision,
                    whole=changes.is_whole and number == 0,
                    version=version,
                    value=value if number == 0 else b"",
                    leases=leases,
                    gone=gone,
                )
            )
            for number, (leases, gone) in enumerate(parts)
        ]


def _parts(leases: Mapping[str, bytes], gone: tuple[str, ...], taken: int) -> Iterator[Entries]:
    """Cut the lists so that each part fits in a frame; the first frame has `taken` bytes less."""
    room = MAX_CONTROL_BYTES - _FIELDS_BYTES - taken
    some: list[tuple[str, bytes]] = []
    ended: list[str] = []
    entries: list[tuple[str, bytes | None]] = [
        *leases.items(),
        *((holder, None) for holder in gone),
    ]
    for holder, value in entries:
        size = _ITEM_BYTES + len(holder.encode()) + (0 if value is None else len(value))
        if size > room:
            yield tuple(some), tuple(ended)
            some, ended, room = [], [], MAX_CONTROL_BYTES - _FIELDS_BYTES
        room -= size
        if value is None:
            ended.append(holder)
        else:
            some.append((holder, value))
    yield tuple(some), tuple(ended)


# A frame has room for the largest document and for a lease, so that no part is empty but the only.
assert MAX_DOCUMENT_BYTES + _FIELDS_BYTES + 8_192 < MAX_CONTROL_BYTES
