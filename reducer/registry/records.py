"""Records: documents with versions, leases that lapse, and what has changed since a revision.

Laws:

- A document changes only to a greater version, also if its record was dropped in between. So two
  different documents of a record never have the same version.
- Each change of a record, of its document or of its leases, gives the record a new revision.
- A request above a limit raises QuotaError and changes nothing.

Time is an argument. This module knows no file, no connection and no watcher. Whoever keeps
documents in a file writes a document first, and then calls `set_document`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from reducer.registry import limits
from reducer.wire.errors import QuotaError

Key = tuple[str, str]  # job, name of the record


class Document(NamedTuple):
    """`tokens`: of the last changes, this one included; each identifies one call of cas."""

    version: int
    value: bytes
    tokens: tuple[bytes, ...] = ()


NO_DOCUMENT: Final = Document(0, b"")


@dataclass(frozen=True, slots=True)
class Contents:
    """What a registry with a file begins with."""

    incarnation: bytes
    floor: int
    documents: Mapping[Key, Document]


@dataclass(slots=True)
class _Lease:
    value: bytes
    until: float
    revision: int  # of the record, when the value came


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reader has to change to have the record at `revision`.

    If `is_whole`, the reader first forgets what it has. `document` is None if the reader has it.
    """

    revision: int
    is_whole: bool
    document: Document | None
    leases: Mapping[str, bytes]
    gone: tuple[str, ...]


class _Record:
    """One record. Readers that know less than `since` must be told everything."""

    def __init__(self, revision: int, now: float) -> None:
        self.document = NO_DOCUMENT
        self.document_revision = revision
        self.leases: dict[str, _Lease] = {}
        self.lease_bytes = 0
        self.gone: dict[str, int] = {}  # holders whose leases have ended, and the revision of that
        self.since = revision
        self.revision = revision
        self.touched = now
        self.first_end = inf  # no lease ends before

    def changes(self, known: int) -> Changes:
        """What has come after the revision `known`."""
        whole = not self.since <= known <= self.revision
        after = -1 if whole else known
        return Changes(
            self.revision,
            whole,
            self.document if self.document_revision > after else None,
            {h: lease.value for h, lease in self.leases.items() if lease.revision > after},
            () if whole else tuple(h for h, revision in self.gone.items() if revision > after),
        )

    def forget_gone(self) -> None:
        """Forget the oldest half of `gone` when it is full."""
        if len(self.gone) > limits.MAX_HOLDERS:
            for holder in list(self.gone)[: limits.MAX_HOLDERS // 2]:
                self.since = self.gone.pop(holder)


class Records:
    """All records of a registry. `floor`: the greatest version of any dropped document.

    `revision` 0 is that of a record that does not exist.
    """

    def __init__(self, documents: Mapping[Key, Document], floor: int, now: float) -> None:
        self.floor = floor
        self._records: dict[Key, _Record] = {}
        self._bytes = 0
        self._of_job: dict[str, tuple[int, int]] = {}  # records, bytes
        self._revisions = 0
        for key, document in documents.items():
            self._open(key, now)
            self.set_document(key, document, now)

    def __len__(self) -> int:
        return len(self._records)

    def documents(self) -> Iterator[tuple[Key, Document]]:
        for key, record in self._records.items():
            if record.document.version:
                yield key, record.document

    def document(self, key: Key) -> Document:
        record = self._records.get(key)
        return NO_DOCUMENT if record is None else record.document

    def leases(self, key: Key) -> dict[str, bytes]:
        record = self._records.get(key)
        return {} if record is None else {h: each.value for h, each in record.leases.items()}

    def revision(self, key: Key) -> int:
        record = self._records.get(key)
        return 0 if record is None else record.revision

    def changes(self, key: Key, known: int, now: float) -> Changes:
        """What a reader that knows the record at revision `known` has to change."""
        record = self._records.get(key)
        if record is None:
            return Changes(0, True, NO_DOCUMENT, {}, ())
        record.touched = now
        return record.changes(known)

    def next_document(
        self, key: Key, before: Document, value: bytes, token: bytes, now: float
    ) -> Document:
        """The document that follows `before`, the record's present one or one that is being
        written.

        Makes room for it, so that `set_document` cannot fail.
        """
        limits.check_name(key[1])
        limits.check_document(value)
        self._make_room(key, len(value) - len(self.document(key).value), now)
        tokens = (*before.tokens, token) if token else before.tokens
        version = (before.version or self.floor) + 1
        return Document(version, value, tokens[-limits.KEPT_TOKENS :])

    def set_document(self, key: Key, document: Document, now: float) -> None:
        """The document is in the file: show it."""
        record = self._open(key, now)
        self._count(key, 0, len(document.value) - len(record.document.value))
        record.document = document
        record.document_revision = self._changed(record)

    def lease(self, key: Key, holder: str, value: bytes, seconds: float, now: float) -> bool:
        """Begin, renew or change a lease. Returns whether the record has changed."""
        limits.check_name(key[1])
        limits.check_holder(holder)
        limits.check_lease(value, seconds)
        record = self._records.get(key)
        held = None if record is None else record.leases.get(holder)
        more = len(value) - len(held.value) if held is not None else _lease_size(holder, value)
        if more > 0:
            self._check_leases(key, record, more, held is None)
            self._make_room(key, more, now)
        record = self._open(key, now)
        record.first_end = min(record.first_end, now + seconds)
        if held is not None and held.value == value:
            held.until = now + seconds
            return False
        self._count(key, 0, more)
        record.lease_bytes += more
        record.gone.pop(holder, None)
        record.leases[holder] = _Lease(value, now + seconds, self._changed(record))
        return True

    def release(self, key: Key, holder: str, now: float) -> bool:
        """End a lease. Returns whether there was one."""
        record = self._records.get(key)
        if record is None or holder not in record.leases:
            return False
        self._end_lease(key, record, holder)
        record.touched = now
        self._close_if_empty(key, record)
        return True

    def expire(self, now: float) -> list[Key]:
        """End the leases that were not renewed in time. Returns the records that have changed."""
        due = [key for key, record in self._records.items() if record.first_end <= now]
        return [key for key in due if self._expire(key, self._records[key], now)]

    def _expire(self, key: Key, record: _Record, now: float) -> bool:
        over = [holder for holder, lease in record.leases.items() if lease.until <= now]
        for holder in over:
            self._end_lease(key, record, holder)
        record.first_end = min((lease.until for lease in record.leases.values()), default=inf)
        if over:
            record.touched = now
            self._close_if_empty(key, record)
        return bool(over)

    def next_end(self) -> float:
        """No lease ends before this time."""
        return min((record.first_end for record in self._records.values()), default=inf)

    def shift_clocks(self, seconds: float) -> None:
        """The process was stopped for `seconds`: no holder could renew its lease."""
        for record in self._records.values():
            record.first_end += seconds
            for lease in record.leases.values():
                lease.until += seconds

    def _end_lease(self, key: Key, record: _Record, holder: str) -> None:
        size = _lease_size(holder, record.leases.pop(holder).value)
        record.lease_bytes -= size
        self._count(key, 0, -size)
        record.gone[holder] = self._changed(record)
        record.forget_gone()

    def _check_leases(self, key: Key, record: _Record | None, more: int, is_new: bool) -> None:
        if record is None:
            return
        if is_new and len(record.leases) >= limits.MAX_HOLDERS:
            raise QuotaError(f"record {key[1]!r} has {limits.MAX_HOLDERS:,} leases, the limit")
        if record.lease_bytes + more > limits.MAX_LEASES_BYTES:
            raise QuotaError(
                f"the leases of record {key[1]!r} would take {record.lease_bytes + more:,} bytes, "
                f"the limit is {limits.MAX_LEASES_BYTES:,}"
            )

    # --- records and their number ---------------------------------------------------------------

    def _open(self, key: Key, now: float) -> _Record:
        record = self._records.get(key)
        if record is None:
            self._revisions += 1
            record = self._records[key] = _Record(self._revisions, now)
            self._count(key, 1, _record_size(key))
        record.touched = now
        return record

    def _changed(self, record: _Record) -> int:
        self._revisions += 1
        record.revision = self._revisions
        return record.revision

    def _close_if_empty(self, key: Key, record: _Record) -> None:
        if not record.leases and not record.document.version:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        record = self._records.pop(key)
        self.floor = max(self.floor, record.document.version)
        self._count(key, -1, -_record_size(key) - len(record.document.value))

    def _count(self, key: Key, records: int, size: int) -> None:
        self._bytes += size
        count, used = self._of_job.get(key[0], (0, 0))
        if count + records:
            self._of_job[key[0]] = (count + records, used + size)
        else:
            self._of_job.pop(key[0], None)

    def _make_room(self, key: Key, more: int, now: float) -> None:
        """Drop idle records until the record may have `more` bytes; else raise QuotaError."""
        new = key not in self._records
        more += _record_size(key) if new else 0
        while True:
            count, used = self._of_job.get(key[0], (0, 0))
            if count + new > limits.MAX_RECORDS_OF_JOB or used + more > limits.MAX_BYTES_OF_JOB:
                self._drop_idle(key, now, of_job=True)
            elif len(self) + new > limits.MAX_RECORDS or self._bytes + more > limits.MAX_BYTES:
                self._drop_idle(key, now, of_job=False)
            else:
                return

    def _drop_idle(self, key: Key, now: float, of_job: bool) -> None:
        idle = [
            (record.touched, other)
            for other, record in self._records.items()
            if other != key
            and not record.leases
            and record.touched <= now - limits.IDLE_SECONDS
            and (other[0] == key[0] or not of_job)
        ]
        if idle:
            self._drop(min(idle)[1])
            return
        if of_job:
            most, size, whose = limits.MAX_RECORDS_OF_JOB, limits.MAX_BYTES_OF_JOB, "of one job"
        else:
            most, size, whose = limits.MAX_RECORDS, limits.MAX_BYTES, "of all jobs"
        raise QuotaError(
            f"the registry has no room for record {key[1]!r} of job {key[0]!r}: the limits are "
            f"{most:,} records and {size:,} bytes {whose}. A record without leases makes room "
            f"{limits.IDLE_SECONDS / 3600:g} h after its last use"
        )


def _record_size(key: Key) -> int:
    return limits.RECORD_OVERHEAD + len(key[0]) + len(key[1])


def _lease_size(holder: str, value: bytes) -> int:
    return limits.LEASE_OVERHEAD + len(holder) + len(value)
