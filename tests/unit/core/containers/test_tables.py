"""Lookups of numbers that a peer chose take few probes, whatever the numbers are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from reducer.core.containers.ascending import Ascending
from reducer.core.containers.tables import Numbered, OrderedSet

MANY = 30_000
SLOTS = 1 << 16  # of a dict with that many items
CHOSEN = [1]  # the probe sequence of a dict
while len(CHOSEN) < MANY:
    CHOSEN.append((5 * CHOSEN[-1] + 1) % SLOTS)


def places(number: int) -> Iterator[int]:
    """CPython's probe sequence for an int in a dict (Objects/dictobject.c)."""
    perturb = hash(number) & ((1 << 64) - 1)
    place = perturb % SLOTS
    while True:
        yield place
        perturb >>= 5
        place = (5 * place + perturb + 1) % SLOTS


def taken_by(numbers: list[int]) -> set[int]:
    taken: set[int] = set()
    for each in numbers:
        taken.add(next(place for place in places(each) if place not in taken))
    return taken


def looked_at(taken: set[int], number: int) -> int:
    """The number of probes of a dict for a number that is absent."""
    return next(n for n, place in enumerate(places(number), 1) if place not in taken)


def filled(numbers: list[int]) -> Numbered[int]:
    table: Numbered[int] = Numbered()
    for number in numbers:
        table[number] = number
    return table


def test_chosen_numbers_are_found_without_a_walk() -> None:
    """Regression: each of 256 entries of a heartbeat took 30,000 probes: 24 ms."""
    plain = taken_by(CHOSEN)
    absent = next(n for n in range(SLOTS, 9 * SLOTS) if looked_at(plain, n) > MANY // 2)
    *hidden, number = list(filled([*CHOSEN, absent])._items)
    assert looked_at(taken_by(hidden), number) < 200


def test_a_table_has_what_was_put_there() -> None:
    table = filled([7, 1 << 63, 0])
    assert len(table) == 3 and 7 in table and 8 not in table
    assert table[1 << 63] == table.get(1 << 63) == 1 << 63
    assert table.get(8) is None and table.pop(8) is None
    assert table.numbers() == list(table.values()) == [7, 1 << 63, 0]
    assert table.pop_last() == 0 and table.pop(7) == 7 and len(table) == 1


def test_a_table_gives_back_the_memory_of_what_it_has_lost() -> None:
    """Regression: keys without rounds kept 0.6 MB each, which was not charged."""
    table, items = filled(list(range(10_000))), OrderedSet[int]()
    for number in range(10_000):
        items.add(number)
    for number in range(9_990):
        table.pop(number)
        assert items.discard(number) and not items.discard(number)
    assert sys.getsizeof(table._items) < 4_096 > sys.getsizeof(items._items)
    assert table.numbers() == list(items) == items.first(20) == list(range(9_990, 10_000))
    assert items.pop_last() == table.pop_last() == 9_999


def test_numbers_that_are_lost_take_no_memory() -> None:
    """Regression: a job could make a lane keep any number, which was not charged."""
    table: Numbered[int] = Numbered()
    ascending = Ascending()
    for number in range(10_000):
        table[number] = number
        ascending.add(number, table)
        if number % 100:
            table.pop(number)
            ascending.removed(table)
        assert len(ascending._heap) <= 2 * len(table)
    assert ascending.first_below(10_000, table) == 0


def test_a_turn_looks_at_some_of_the_numbers_that_are_lost() -> None:
    """Regression: one frame took out all numbers of all its keys: 0.67 s."""
    table = filled([])
    ascending = Ascending()
    for number in range(10_000):
        table[number] = number
        ascending.add(number, table)
    for number in range(4_999):
        table.pop(number)
        ascending.removed(table)
    looks = 0
    while (first := ascending.first_below(5_000, table)) is None:
        assert ascending.has_below(5_000)
        looks += 1
    assert first == 4_999 and looks >= 4


def test_a_table_that_has_lost_most_gives_its_memory_back() -> None:
    """Regression: 2,000 keys with 64 rounds each took 2.8 times their charge."""
    for most in (6, 30, 64, 1_000):
        table = filled(list(range(most)))
        for number in range(1, most):
            table.pop(number)
        assert sys.getsizeof(table._items) == sys.getsizeof({0: 0}), most
