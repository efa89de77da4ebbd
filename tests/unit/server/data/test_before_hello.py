"""Which connection without a HELLO makes room for the next one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from reducer.core.surface.permit import ANY_RANK, Permit
from reducer.server.data.before_hello import MAX_BEFORE_HELLO, BeforeHello
from reducer.server.data.buffers import BufferPool
from reducer.server.data.shell import NEWCOMERS_AT_ONCE, LaneShell
from reducer.wire.codes import MessageKind
from reducer.wire.header import Header, pack_header
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, hello, receive

GREEDY, SLOW, ANYTHING = (
    Permit("key", (("greedy", ANY_RANK),)),
    Permit("certificate", (("slow", 0), ("slow", 1))),
    None,
)


class Crowd:
    """As many connections without HELLO as there is room for, with alternating permits."""

    def __init__(self, *permits: Permit | None) -> None:
        self.before_hello = BeforeHello()
        self.permits: dict[int, Permit | None] = {}
        for permit in itertools.islice(itertools.cycle(permits), MAX_BEFORE_HELLO):
            assert self.before_hello.to_displace() is None
            self.come(permit)

    def come(self, permit: Permit | None) -> None:
        session = len(self.permits) + 1
        self.permits[session] = permit
        self.before_hello.add(session, permit)

    def go(self, session: int | None) -> bool:
        assert session is not None
        return self.before_hello.remove(session, self.permits[session])


def test_there_is_room_for_so_many_and_again_for_who_has_left() -> None:
    crowd = Crowd(GREEDY, ANYTHING)
    assert crowd.go(crowd.before_hello.to_displace())
    assert crowd.before_hello.to_displace() is None


def test_who_has_left_leaves_once() -> None:
    crowd = Crowd(GREEDY)
    oldest = crowd.before_hello.to_displace()
    assert crowd.go(oldest) and not crowd.go(oldest)
    crowd.come(GREEDY)
    assert crowd.before_hello.to_displace() is not None
    assert not crowd.before_hello.remove(MAX_BEFORE_HELLO + 2, SLOW), (
        "this connection was never added"
    )


def test_the_oldest_of_those_that_are_most_makes_room() -> None:
    crowd = Crowd(GREEDY, SLOW, GREEDY, ANYTHING)
    gone: list[int] = []
    while not gone or crowd.permits[gone[-1]] is not SLOW:
        oldest = crowd.before_hello.to_displace()
        assert oldest is not None and crowd.go(oldest)
        gone.append(oldest)
        crowd.come(SLOW)
    *greedy, _ = gone
    assert {crowd.permits[session] for session in greedy} == {GREEDY}
    assert greedy == sorted(greedy)
    assert len(greedy) == MAX_BEFORE_HELLO // 8 + 1, "128 - 33 are fewer than 64 + 33"


def test_fewer_come_at_once_while_many_have_said_nothing() -> None:
    async def run() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connections = [shell.connection() for _ in range(MAX_BEFORE_HELLO // 2 + 1)]
        for connection in connections:
            assert shell.newcomers_at_once == NEWCOMERS_AT_ONCE
            connection.connection_made(Sink())
        assert shell.newcomers_at_once == 1
        header, payload = hello(0, 2, 4 << 10)
        receive(connections[0], memoryview(pack_header(header, KERNELS.crc32c) + payload))
        assert shell.newcomers_at_once == NEWCOMERS_AT_ONCE

    asyncio.run(run())


def test_proofs_of_one_job_are_of_one_kind() -> None:
    """Regression: 256 ranks with a certificate each pushed out any job with two workers between
    proof and HELLO."""
    ranks = (Permit("certificate", (("greedy", rank),)) for rank in range(MAX_BEFORE_HELLO // 2))
    keys = (Permit("key", (("greedy", ANY_RANK),)) for _ in range(MAX_BEFORE_HELLO // 2))
    crowd = Crowd(*ranks, *keys)
    crowd.come(SLOW)
    assert len(crowd.before_hello._groups) == 2


class Lingering(Sink):
    """A socket whose worker does not read the reason of its refusal."""

    aborted = False

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:
        raise OSError("the test does not ask how much is unread")

    def abort(self) -> None:
        self.aborted = True


def no_map() -> bytes:
    """A HELLO that is not msgpack."""
    return (
        pack_header(
            Header(MessageKind.HELLO, length=1, payload_crc=KERNELS.crc32c(b"x")), KERNELS.crc32c
        )
        + b"x"
    )


def of_another_job() -> bytes:
    header, payload = hello(0, 1, 64, "another")
    return pack_header(header, KERNELS.crc32c) + payload


@pytest.mark.parametrize("frame", [no_map, of_another_job])
def test_a_hello_that_names_no_job_makes_room_as_none_does(frame: Callable[[], bytes]) -> None:
    """Regression: each lingered for seconds; 2,500 a second took all descriptors of a lane."""

    async def crowd() -> int:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        sockets = []
        for _ in range(2 * MAX_BEFORE_HELLO):
            connection = shell.connection(GREEDY)
            sockets.append(Lingering())
            connection.connection_made(sockets[-1])
            connection.turn.spent = -1_000.0  # the turn does not end, even on a slow machine
            receive(connection, memoryview(frame()))
            assert connection.is_closing()
        return sum(not one.aborted for one in sockets)

    assert asyncio.run(crowd()) == MAX_BEFORE_HELLO
