"""Data waiting for a transport goes out in order, in few pieces, and in parts."""

from __future__ import annotations

import random

import pytest

from reducer.server.data.outbox import BYTES_AT_ONCE, JOINED_PIECES, PIECES_AT_ONCE, Outbox, Piece
from reducer.wire.header import HEADER_SIZE

SMALL, LARGE = 100, 4_096


def filled(*sizes: int) -> tuple[Outbox, bytes]:
    outbox = Outbox()
    data = random.Random(len(sizes)).randbytes(sum(sizes))
    place = 0
    for size in sizes:
        outbox.add([data[place : place + size]], size)
        place += size
    return outbox, data


def emptied(outbox: Outbox) -> list[list[Piece]]:
    parts = []
    while outbox.size:
        parts.append(outbox.take())
        assert parts[-1], "expected progress"
        assert len(parts[-1]) <= PIECES_AT_ONCE
        assert sum(map(len, parts[-1])) <= BYTES_AT_ONCE
    assert not outbox.take()
    return parts


def joined(parts: list[list[Piece]]) -> bytes:
    return b"".join(piece for part in parts for piece in part)


def test_small_pieces_become_large_ones() -> None:
    """Regression: all pieces that a slow reader left unread were freed one by one."""
    outbox, data = filled(*[SMALL] * 50 * JOINED_PIECES)
    assert len(outbox._pieces) == 50
    (pieces,) = emptied(outbox)
    assert joined([pieces]) == data


def test_few_small_pieces_are_one_when_they_go() -> None:
    outbox, data = filled(*[SMALL] * 3)
    assert emptied(outbox) == [[data]]


def test_large_pieces_are_not_copied() -> None:
    pieces = [bytes(LARGE) for _ in range(2 * JOINED_PIECES)]
    outbox = Outbox()
    for piece in pieces:
        outbox.add([piece], LARGE)
    (taken,) = emptied(outbox)
    assert all(a is b for a, b in zip(taken, pieces, strict=True))


def test_many_pieces_go_a_part_at_a_time() -> None:
    outbox, data = filled(*[LARGE // 2] * PIECES_AT_ONCE * 3)
    parts = emptied(outbox)
    assert len(parts) == 3 and joined(parts) == data


def test_what_comes_behind_a_part_is_not_copied_either() -> None:
    longer = [bytes(2 * LARGE) for _ in range(PIECES_AT_ONCE)]
    pieces = longer + [bytes(LARGE) for _ in range(2 * PIECES_AT_ONCE)]
    outbox = Outbox()
    for piece in longer:
        outbox.add([piece], len(piece))
    taken = outbox.take()
    for piece in pieces[len(longer) :]:
        outbox.add([piece], len(piece))
    taken += [piece for part in emptied(outbox) for piece in part]
    assert all(a is b for a, b in zip(taken, pieces, strict=True))


def test_a_long_piece_goes_a_part_at_a_time() -> None:
    outbox, data = filled(SMALL, 3 * BYTES_AT_ONCE, SMALL)
    parts = emptied(outbox)
    assert len(parts) == 4 and joined(parts) == data


def test_a_chunk_of_a_mebibyte_goes_whole_with_its_header() -> None:
    """The rest of a chunk that was cut would be another write, packet and wake-up."""
    frames = [bytes(HEADER_SIZE), bytes(1 << 20)] * 3
    outbox = Outbox()
    for piece in frames:
        outbox.add([piece], len(piece))
    parts = emptied(outbox)
    assert len(parts) == 3
    sent = [piece for part in parts for piece in part]
    assert all(a is b for a, b in zip(sent, frames, strict=True))


@pytest.mark.parametrize("seed", range(50))
def test_whatever_comes_goes_out_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    choices = [(1, 200), (1, 5_000), (4_000, 70_000), (500_000, 3_000_000)][: rng.randint(1, 4)]
    outbox, given, taken = Outbox(), bytearray(), bytearray()
    for _ in range(rng.randint(1, 400)):
        size = rng.randint(*rng.choice(choices))
        if len(given) < 32 << 20:
            piece = rng.randbytes(size)
            outbox.add([piece[: size // 2], memoryview(piece)[size // 2 :]], size)
            given += piece
        if rng.random() < 0.05:
            taken += b"".join(outbox.take())
        assert outbox.size == len(given) - len(taken)
    assert taken + joined(emptied(outbox)) == given


def test_what_is_cleared_is_gone() -> None:
    outbox, _ = filled(*[SMALL] * 3 * JOINED_PIECES)
    outbox.clear()
    assert not outbox.size and not outbox.take()
    outbox.add([b"next"], 4)
    assert outbox.take() == [b"next"]
