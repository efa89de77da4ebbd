"""Where partitions live: the registry's document, and the decisions about it."""

from __future__ import annotations

import pytest

from reducer.wire.table_messages import MAX_TERM
from reducer_client.errors import ProtocolError, StateLostError
from reducer_client.tables.places import Place, Places, Spot, spread
from reducer_client.tables.places_document import (
    Entry,
    PlacesDocument,
    Seat,
    decode,
    found,
)

ADDRESSES = ("a:1", "b:1", "c:1")


def name(slot: int, lane: int, start: int = 0) -> bytes:
    return bytes([slot, lane, start]) + bytes(13)


def seat(slot: int, lane: int = 0, start: int = 0) -> Seat:
    return Seat(slot, lane, name(slot, lane, start))


@pytest.fixture
def document() -> PlacesDocument:
    return found(ADDRESSES, [[name(0, 0), name(0, 1)], [name(1, 0)], [name(2, 0), name(2, 1)]])


def test_each_lane_founds_a_partition_with_its_backup_on_the_next_reducer(
    document: PlacesDocument,
) -> None:
    assert document.partitions == (
        Entry(1, seat(0), seat(1)),
        Entry(1, seat(0, 1), seat(1)),
        Entry(1, seat(1), seat(2)),
        Entry(1, seat(2), seat(0)),
        Entry(1, seat(2, 1), seat(0, 1)),
    )
    backup = Spot("b:1", 0, name(1, 0))
    assert document.place(1) == Place("a:1", 1, name(0, 1), 1, backup, is_filling=False)
    assert document.spare_slots(0, 1) == [2, 0]


def test_the_document_comes_back_from_its_bytes(document: PlacesDocument) -> None:
    moved = document.promote(0, 1, None)
    assert moved is not None
    filled = moved.name_spare(0, 2, seat(2, 1, 5))
    assert filled is not None
    for each in (document, moved, filled):
        assert decode(each.encode()) == each


def test_a_backup_takes_the_place_of_its_primary(document: PlacesDocument) -> None:
    moved = document.promote(3, 1, seat(2, 0, start=1))
    assert moved is not None
    assert moved.partitions[3] == Entry(2, seat(0), seat(2, 0, start=1), is_filling=True)
    assert [a == b for a, b in zip(document.partitions, moved.partitions, strict=True)] == [
        True, True, True, False, True,
    ]  # fmt: skip
    alone = document.promote(3, 1, None)
    assert alone is not None and alone.partitions[3] == Entry(2, seat(0), None)


def test_what_was_decided_already_is_not_decided_again(document: PlacesDocument) -> None:
    moved = document.promote(3, 1, None)
    assert moved is not None
    assert moved.promote(3, 1, None) is None and moved.promote(3, 2, None) is None
    assert moved.leave_backup(3, 1, name(0, 0), None) is None
    assert moved.name_spare(3, 1, seat(1)) is None
    filled = moved.name_spare(3, 2, seat(1))
    assert filled is not None and filled.name_spare(3, 3, seat(1)) is None


def test_a_spare_never_takes_the_place_of_its_primary(document: PlacesDocument) -> None:
    spare = seat(2, 0, start=1)
    moved = document.promote(3, 1, spare)
    assert moved is not None and not moved.partitions[3].can_fail_over
    assert moved.promote(3, 2, None) is None
    full = moved.confirm_spare(3, 2, spare.incarnation)
    assert full is not None and full.partitions[3] == Entry(3, seat(0), spare)
    assert full.promote(3, 3, None) is not None


def test_only_the_backup_that_is_meant_is_left_or_confirmed(document: PlacesDocument) -> None:
    assert document.leave_backup(0, 1, name(1, 0, 9), None) is None
    left = document.leave_backup(0, 1, name(1, 0), seat(2))
    assert left is not None
    assert left.partitions[0] == Entry(2, seat(0), seat(2), is_filling=True)
    assert left.confirm_spare(0, 2, name(1, 0)) is None
    assert left.confirm_spare(0, 1, name(2, 0)) is None
    assert document.confirm_spare(0, 1, name(1, 0)) is None  # it is one already


def test_terms_end_with_an_error_that_says_what_to_do() -> None:
    entry = Entry(MAX_TERM, seat(0), seat(1))
    with pytest.raises(StateLostError, match="begin a new run"):
        PlacesDocument(ADDRESSES, (entry,)).promote(0, MAX_TERM, None)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        PlacesDocument((), ()).encode(),
        PlacesDocument(ADDRESSES, ()).encode(),
        PlacesDocument(ADDRESSES, (Entry(0, seat(0), None),)).encode(),
        PlacesDocument(ADDRESSES, (Entry(1, seat(3), None),)).encode(),
        PlacesDocument(ADDRESSES, (Entry(1, Seat(0, 0, b"short"), None),)).encode(),
        PlacesDocument(ADDRESSES, (Entry(1, seat(0), Seat(0, -1, name(0, 0))),)).encode(),
    ],
)
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode(value)


def test_a_partition_moves_to_newer_terms_only() -> None:
    seen: list[int] = []
    places = Places(spread([("a:1", 2), ("b:1", 1)]), seen.append)
    assert [places.of(each)[:2] for each in range(3)] == [("a:1", 0), ("a:1", 1), ("b:1", 0)]
    newer, older = Place("b:1", 0, b"x", term=3), Place("a:1", 1, b"y", term=2)
    for place in (newer, older, newer._replace(address="c:1")):
        places.move(1, place)
    assert places.of(1) == newer and seen == [1]
