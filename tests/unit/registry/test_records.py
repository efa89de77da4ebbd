"""The records of a registry: versions, leases, changes since a revision, limits. No clock."""

from __future__ import annotations

import random

import pytest

from reducer.registry import limits
from reducer.registry.records import NO_DOCUMENT, Changes, Document, Key, Records
from reducer.wire.errors import QuotaError

KEY = ("job", "view")


def records(now: float = 0.0) -> Records:
    return Records({}, 0, now)


def put(found: Records, key: Key, value: bytes, now: float = 0.0) -> Document:
    document = found.next_document(key, found.document(key), value, b"", now)
    found.set_document(key, document, now)
    return document


class Reader:
    """Applies changes to what it knows, as a client does."""

    def __init__(self, found: Records, key: Key = KEY) -> None:
        self._records = found
        self._key = key
        self.revision = 0
        self.document = NO_DOCUMENT
        self.leases: dict[str, bytes] = {}

    def read(self, now: float = 0.0) -> Changes:
        changes = self._records.changes(self._key, self.revision, now)
        if changes.is_whole:
            self.document, self.leases = NO_DOCUMENT, {}
        self.document = changes.document or self.document
        for holder in changes.gone:
            self.leases.pop(holder, None)
        self.leases.update(changes.leases)
        self.revision = changes.revision
        return changes

    @property
    def is_right(self) -> bool:
        expected = self._records.document(self._key), self._records.leases(self._key)
        return (self.document, self.leases) == expected


def test_versions_count_from_1() -> None:
    found = records()
    assert found.document(KEY) == NO_DOCUMENT
    assert put(found, KEY, b"a") == Document(1, b"a")
    assert put(found, KEY, b"b") == Document(2, b"b")
    assert put(found, ("job", "other"), b"c") == Document(1, b"c")
    assert dict(found.documents()) == {
        KEY: Document(2, b"b"),
        ("job", "other"): Document(1, b"c"),
    }


def test_a_reader_is_told_only_what_it_lacks() -> None:
    found = records()
    put(found, KEY, b"document")
    found.lease(KEY, "a", b"1", 5.0, 0.0)
    reader = Reader(found)
    assert reader.read().is_whole and reader.is_right
    found.lease(KEY, "b", b"2", 5.0, 0.0)
    changes = reader.read()
    assert (changes.is_whole, changes.document, changes.leases) == (False, None, {"b": b"2"})
    found.release(KEY, "a", 0.0)
    changes = reader.read()
    assert (changes.document, changes.leases, changes.gone) == (None, {}, ("a",))
    assert reader.is_right
    put(found, KEY, b"next")
    changes = reader.read()
    assert (changes.document, changes.leases, changes.gone) == (Document(2, b"next"), {}, ())
    assert reader.is_right
    changes = reader.read()
    assert (changes.document, changes.leases, changes.gone) == (None, {}, ())


def test_a_renewal_is_no_change() -> None:
    found = records()
    assert found.lease(KEY, "a", b"1", 5.0, 0.0)
    before = found.revision(KEY)
    assert not found.lease(KEY, "a", b"1", 5.0, 4.0)
    assert found.revision(KEY) == before
    assert not found.expire(8.9)
    assert found.expire(9.0) == [KEY]


def test_a_lease_lapses_in_its_own_time() -> None:
    found = records()
    put(found, KEY, b"")
    found.lease(KEY, "long", b"", 60.0, 0.0)
    found.lease(KEY, "short", b"", 2.0, 0.0)
    assert found.next_end() == 2.0
    assert not found.expire(1.9) and found.expire(2.0) == [KEY]
    assert found.leases(KEY) == {"long": b""} and found.next_end() == 60.0


def test_a_lease_that_is_renewed_for_less_lapses_sooner() -> None:
    found = records()
    found.lease(KEY, "a", b"", 60.0, 0.0)
    found.lease(KEY, "a", b"", 1.0, 0.0)
    assert found.expire(1.0) == [KEY]


def test_time_in_which_the_process_stood_still_ends_no_lease() -> None:
    found = records()
    found.lease(KEY, "a", b"", 2.0, 0.0)
    found.lease(KEY, "b", b"", 3.0, 0.0)
    found.shift_clocks(10.0)
    assert not found.expire(11.0) and found.expire(12.0) == [KEY]
    assert found.leases(KEY) == {"b": b""}


def test_a_record_with_nothing_in_it_is_gone() -> None:
    found = records()
    reader = Reader(found)
    found.lease(KEY, "a", b"1", 5.0, 0.0)
    reader.read()
    found.release(KEY, "a", 0.0)
    assert len(found) == 0 and found.revision(KEY) == 0
    found.lease(KEY, "b", b"2", 5.0, 0.0)
    assert reader.read().is_whole and reader.is_right


def test_readers_of_any_age_have_the_record_in_the_end() -> None:
    chance = random.Random(7)
    found = records()
    readers = [Reader(found) for _ in range(5)]
    for now in range(2_000):
        holder, what = f"h{chance.randrange(6)}", chance.random()
        if what < 0.2:
            put(found, KEY, chance.randbytes(3), now)
        elif what < 0.6:
            found.lease(KEY, holder, chance.randbytes(1), chance.choice((2.0, 30.0)), now)
        elif what < 0.8:
            found.release(KEY, holder, now)
        found.expire(now)
        for reader in readers:
            if chance.random() < 0.2:
                reader.read()
                assert reader.is_right


def test_a_reader_that_is_too_far_behind_is_told_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_HOLDERS", 4)
    found = records()
    put(found, KEY, b"")
    old, new = Reader(found), Reader(found)
    old.read()
    for number in range(20):
        found.lease(KEY, f"h{number}", b"", 5.0, 0.0)
        new.read()
        found.release(KEY, f"h{number}", 0.0)
        changes = new.read()
        assert not changes.is_whole and changes.gone == (f"h{number}",) and new.is_right
    assert old.read().is_whole and old.is_right


def test_limits_of_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    found = records()
    monkeypatch.setattr(limits, "MAX_HOLDERS", 2)
    for holder in ("a", "b", "a"):
        found.lease(KEY, holder, b"", 5.0, 0.0)
    with pytest.raises(QuotaError, match="has 2 leases"):
        found.lease(KEY, "c", b"", 5.0, 0.0)
    monkeypatch.undo()
    full = limits.MAX_LEASES_BYTES // (limits.LEASE_OVERHEAD + 4 + limits.MAX_LEASE_BYTES)
    big = ("job", "big")
    for number in range(full):
        found.lease(big, f"{number:04d}", bytes(limits.MAX_LEASE_BYTES), 5.0, 0.0)
    with pytest.raises(QuotaError, match="the leases of record 'big'"):
        found.lease(big, "last", bytes(limits.MAX_LEASE_BYTES), 5.0, 0.0)
    assert len(found.leases(big)) == full
    found.release(big, "0000", 0.0)
    found.lease(big, "last", bytes(limits.MAX_LEASE_BYTES), 5.0, 0.0)


@pytest.mark.parametrize("of_job", [True, False])
def test_limits_of_records(monkeypatch: pytest.MonkeyPatch, of_job: bool) -> None:
    monkeypatch.setattr(limits, "MAX_RECORDS_OF_JOB" if of_job else "MAX_RECORDS", 2)
    found = records()
    put(found, KEY, b"")
    found.lease(("job", "leased"), "a", b"", 5.0, 0.0)
    with pytest.raises(QuotaError, match="2 records"):
        put(found, ("job", "third"), b"")
    put(found, KEY, b"next")  # not a new record
    other = ("other", "view")
    if of_job:
        put(found, other, b"")
    else:
        with pytest.raises(QuotaError, match="of all jobs"):
            put(found, other, b"")


def test_limits_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES_OF_JOB", 10_000)
    found = records()
    put(found, KEY, bytes(8_500))
    with pytest.raises(QuotaError, match="10,000 bytes of one job"):
        put(found, KEY, bytes(9_400))
    with pytest.raises(QuotaError, match="10,000 bytes of one job"):
        found.lease(KEY, "a", bytes(900), 5.0, 0.0)
    put(found, KEY, bytes(100))
    found.lease(KEY, "a", bytes(900), 5.0, 0.0)
    found.release(KEY, "a", 0.0)
    put(found, KEY, bytes(8_500))


def test_an_idle_record_makes_room_and_its_versions_never_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_RECORDS_OF_JOB", 2)
    found, late = records(), limits.IDLE_SECONDS
    for _ in range(5):
        put(found, KEY, b"old")
    put(found, ("job", "young"), b"")
    found.changes(("job", "young"), 0, 1.0)  # a call
    put(found, ("job", "third"), b"", late)
    assert found.document(KEY) == NO_DOCUMENT and found.document(("job", "young")).version == 1
    assert put(found, KEY, b"new", late + 1) == Document(6, b"new")
    assert found.document(("job", "young")) == NO_DOCUMENT
    with pytest.raises(QuotaError):
        put(found, ("job", "fourth"), b"", late + 1)


def test_a_record_with_a_lease_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_RECORDS_OF_JOB", 1)
    found, late = records(), 2 * limits.IDLE_SECONDS
    found.lease(KEY, "a", b"", 3_600.0, 0.0)
    with pytest.raises(QuotaError):
        put(found, ("job", "other"), b"", late)


def test_the_room_of_dropped_records_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES", 20_000)
    found = records()
    for number in range(200):
        now = 2 * number * limits.IDLE_SECONDS
        put(found, (f"job {number}", "view"), bytes(9_000), now)
        found.lease((f"job {number}", "view"), "a", bytes(500), 5.0, now)
        found.expire(now + 5.0)
    assert 1 <= len(found) <= 2


def test_what_a_file_had_is_there_again() -> None:
    found = Records({KEY: Document(7, b"seven")}, 9, 0.0)
    assert found.document(KEY) == Document(7, b"seven")
    assert put(found, KEY, b"") == Document(8, b"")
    assert put(found, ("job", "new"), b"") == Document(10, b"")
