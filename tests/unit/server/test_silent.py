"""Which of the connections that have not said HELLO makes room for the next one."""

from __future__ import annotations

from reducer.core.permit import ANY_RANK, Permit
from reducer.server.buffers import BufferPool
from reducer.server.shell import LaneShell
from reducer.server.silent import MAX_SILENT, Silent
from tests.support.bare_lane import BUDGET, KERNELS, bare_lane

SHELL = LaneShell(bare_lane(1 << 20), KERNELS, BufferPool(BUDGET), slow_reader_seconds=10.0)
GREEDY, SLOW, ANYTHING = (
    Permit("key", (("greedy", ANY_RANK),)),
    Permit("certificate", (("slow", 0), ("slow", 1))),
    None,
)


def full(*permits: Permit | None) -> Silent:
    """Full of connections, those of the permits in turns."""
    silent = Silent()
    for number in range(MAX_SILENT):
        assert silent.in_the_way() is None
        silent.add(SHELL.connection(permits[number % len(permits)]))
    return silent


def test_there_is_room_for_so_many_and_again_for_who_has_left() -> None:
    silent = full(GREEDY, ANYTHING)
    oldest = silent.in_the_way()
    assert oldest is not None and silent.remove(oldest)
    assert silent.in_the_way() is None


def test_who_has_left_leaves_once() -> None:
    silent = full(GREEDY)
    oldest = silent.in_the_way()
    assert oldest is not None and silent.remove(oldest) and not silent.remove(oldest)
    silent.add(SHELL.connection(GREEDY))
    assert silent.in_the_way() is not None
    assert not silent.remove(SHELL.connection(SLOW)), "it never was there"


def test_the_oldest_of_those_that_are_most_makes_room() -> None:
    silent = full(GREEDY, SLOW, GREEDY, ANYTHING)
    by_permit = []
    for _ in range(MAX_SILENT):
        oldest = silent.in_the_way()
        assert oldest is not None and silent.remove(oldest)
        by_permit.append(oldest)
        silent.add(SHELL.connection(SLOW))
        if oldest.permit is SLOW:
            break
    *greedy, slow = by_permit
    assert {connection.permit for connection in greedy} == {GREEDY} and slow.permit is SLOW
    assert [each.session for each in greedy] == sorted(each.session for each in greedy)
    assert len(greedy) == MAX_SILENT // 8 + 1, "128 - 33 are fewer than 64 + 33"


def test_equal_proofs_are_of_one_kind() -> None:
    """Each connection has a permit of its own."""
    silent = full(*(Permit("key", (("greedy", ANY_RANK),)) for _ in range(MAX_SILENT)))
    silent.add(SHELL.connection(SLOW))
    assert len(silent._groups) == 2
