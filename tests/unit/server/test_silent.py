"""Which of the connections that have not said HELLO makes room for the next one."""

from __future__ import annotations

import itertools

from reducer.core.permit import ANY_RANK, Permit
from reducer.server.silent import MAX_SILENT, Silent

GREEDY, SLOW, ANYTHING = (
    Permit("key", (("greedy", ANY_RANK),)),
    Permit("certificate", (("slow", 0), ("slow", 1))),
    None,
)


class Crowd:
    """As many as there is room for, whose permits come in turns."""

    def __init__(self, *permits: Permit | None) -> None:
        self.silent = Silent()
        self.permits: dict[int, Permit | None] = {}
        for permit in itertools.islice(itertools.cycle(permits), MAX_SILENT):
            assert self.silent.in_the_way() is None
            self.come(permit)

    def come(self, permit: Permit | None) -> None:
        session = len(self.permits) + 1
        self.permits[session] = permit
        self.silent.add(session, permit)

    def go(self, session: int | None) -> bool:
        assert session is not None
        return self.silent.remove(session, self.permits[session])


def test_there_is_room_for_so_many_and_again_for_who_has_left() -> None:
    crowd = Crowd(GREEDY, ANYTHING)
    assert crowd.go(crowd.silent.in_the_way())
    assert crowd.silent.in_the_way() is None


def test_who_has_left_leaves_once() -> None:
    crowd = Crowd(GREEDY)
    oldest = crowd.silent.in_the_way()
    assert crowd.go(oldest) and not crowd.go(oldest)
    crowd.come(GREEDY)
    assert crowd.silent.in_the_way() is not None
    assert not crowd.silent.remove(MAX_SILENT + 2, SLOW), "it never was there"


def test_the_oldest_of_those_that_are_most_makes_room() -> None:
    crowd = Crowd(GREEDY, SLOW, GREEDY, ANYTHING)
    gone: list[int] = []
    while not gone or crowd.permits[gone[-1]] is not SLOW:
        oldest = crowd.silent.in_the_way()
        assert oldest is not None and crowd.go(oldest)
        gone.append(oldest)
        crowd.come(SLOW)
    *greedy, _ = gone
    assert {crowd.permits[session] for session in greedy} == {GREEDY}
    assert greedy == sorted(greedy)
    assert len(greedy) == MAX_SILENT // 8 + 1, "128 - 33 are fewer than 64 + 33"


def test_equal_proofs_are_of_one_kind() -> None:
    """Each connection has a permit of its own."""
    crowd = Crowd(*(Permit("key", (("greedy", ANY_RANK),)) for _ in range(MAX_SILENT)))
    crowd.come(SLOW)
    assert len(crowd.silent._groups) == 2
