"""Whatever a network does to bytes between workers and reducers: no wrong bit, no lost round.

Real sockets and daemons; the harm is done by a proxy in between (tests/support/proxy.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from reducer.wire.codes import MessageKind
from reducer.wire.header import HEADER_SIZE
from tests.soak import flips, frame_storm, hush
from tests.support import harms
from tests.support.counts import draws
from tests.support.groups import Groups, Values
from tests.support.harms import Trigger
from tests.support.proxy import Direction, LinkResetError, Proxies, Stream, pass_on
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

COUNT = 20_011  # elements: one chunk or more for each of two reducers
WORLD = 2
DATA: dict[Direction, MessageKind] = {
    "up": MessageKind.CONTRIBUTION,
    "down": MessageKind.RESULT,
}


@pytest.fixture(scope="module")
def reducers() -> Iterator[Reducers]:
    with Reducers(2) as started:
        yield started


@pytest.fixture(scope="module")
def values() -> Values:
    return Values(1, WORLD, COUNT)


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:100]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_link_may_be_reset_behind_any_byte(
    reducers: Reducers, values: Values, job: str, direction: Direction
) -> None:
    """Resets after every byte of the header, and after 16 bytes of the payload."""
    rng = random.Random(1)
    trigger = Trigger()
    places = [*range(HEADER_SIZE), *(HEADER_SIZE + rng.randrange(30_000) for _ in range(16))]
    with (
        Proxies(reducers.addresses, trigger, framed=True) as proxies,
        Groups(WORLD, proxies.addresses, job) as groups,
    ):
        for turn, place in enumerate(places):
            trigger.arm(direction, DATA[direction], harms.cut(place))
            groups.turn(values, turn)
            assert trigger.fired.is_set(), f"no frame was cut at {place}"
        assert sum(proxies.made) >= 2 * WORLD + len(places)


MOMENTS = (
    "before the first byte",
    "in the middle of a chunk",
    "before any result",
    "after the first result",
)


def _arm_kill(reducers: Reducers, trigger: Trigger, moment: str) -> list[int]:
    """Kill the reducer of the next frame at that moment; its index will be in the list."""
    died: list[int] = []

    async def kill(stream: Stream, piece: bytes) -> None:
        if moment == "in the middle of a chunk":
            await stream.send(piece[: len(piece) // 2])
        reducers.strike(stream.index)
        died.append(stream.index)
        raise LinkResetError

    async def let_one_pass(stream: Stream, piece: bytes) -> None:
        await stream.send(piece)
        trigger.arm("down", MessageKind.RESULT, kill)

    if moment == "after the first result":
        trigger.arm("down", MessageKind.RESULT, let_one_pass)
    else:
        direction: Direction = "down" if moment == "before any result" else "up"
        trigger.arm(direction, DATA[direction], kill)
    return died


def test_a_reducer_may_die_at_any_moment_of_a_round(values: Values, job: str) -> None:
    trigger = Trigger()
    with (
        Reducers(2) as reducers,
        Proxies(reducers.addresses, trigger, framed=True) as proxies,
        Groups(WORLD, proxies.addresses, job) as groups,
    ):

        def all_sum() -> bool:
            groups.turn(values, 2)
            return all(reducers.contributions(index) for index in range(2))

        for moment in MOMENTS:
            groups.turn(values, 0)
            died = _arm_kill(reducers, trigger, moment)
            groups.turn(values, 1)
            (index,) = died
            reducers.kill(index)
            reducers.start(index)
            wait_until(all_sum, 30, "both reducers sum again")


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("place", [0, 1, HEADER_SIZE, HEADER_SIZE + 1000])
def test_a_half_closed_link_is_made_again(
    reducers: Reducers, values: Values, job: str, direction: Direction, place: int
) -> None:
    trigger = Trigger()
    with (
        Proxies(reducers.addresses, trigger, framed=True) as proxies,
        Groups(WORLD, proxies.addresses, job) as groups,
    ):
        trigger.arm(direction, DATA[direction], harms.end(place))
        groups.turn(values, 0)
        assert trigger.fired.is_set()
        groups.turn(values, 1)


def test_every_frame_may_come_twice(reducers: Reducers, values: Values, job: str) -> None:
    """Except frames that begin or end a connection. Nothing is counted twice, no link breaks."""

    async def twice(stream: Stream, piece: bytes) -> None:
        again = harms.kind_of(piece) in harms.REPEATABLE
        await (harms.repeat if again else pass_on)(stream, piece)

    with (
        Proxies(reducers.addresses, lambda _: twice, framed=True) as proxies,
        Groups(WORLD, proxies.addresses, job) as groups,
    ):
        for turn in range(50):
            groups.turn(values, turn)
        assert proxies.made == [WORLD, WORLD]
        stats = groups.ranks[0].stats()["reducers"]
    assert sum(lane["duplicates"] for lane in stats) >= 50


def test_single_bytes_are_as_good(reducers: Reducers, job: str) -> None:
    small = Values(1, WORLD, 600)
    with (
        Proxies(reducers.addresses, lambda _: harms.bytewise) as proxies,
        Groups(WORLD, proxies.addresses, job) as groups,
    ):
        for turn in range(3):
            groups.turn(small, turn)
        assert proxies.made == [WORLD, WORLD]


@pytest.mark.parametrize("directions", [("up", "down"), ("up",), ("down",)], ids="+".join)
def test_a_reducer_behind_a_black_hole_is_left_behind(
    reducers: Reducers, values: Values, job: str, directions: tuple[Direction, ...]
) -> None:
    """The promise is 2.5 s on a quiet machine. Bytes that arrive late afterwards do no harm."""
    with (
        Proxies(reducers.addresses) as proxies,
        Groups(WORLD, proxies.addresses, job) as groups,
    ):
        groups.turn(values, 0)
        proxies.stall(0, *directions)
        began = time.monotonic()
        for turn in range(1, 4):
            groups.turn(values, turn)
        assert time.monotonic() - began < 10
        proxies.resume(0)
        for turn in range(4, 20):
            groups.turn(values, turn)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_short_stall_costs_nothing_but_time(
    reducers: Reducers, values: Values, job: str, direction: Direction
) -> None:
    trigger = Trigger()
    with (
        Proxies(reducers.addresses, trigger, framed=True) as proxies,
        Groups(WORLD, proxies.addresses, job) as groups,
    ):
        for turn in range(3):
            trigger.arm(direction, DATA[direction], harms.delay(0.3))
            groups.turn(values, turn)
            assert trigger.fired.is_set()
        assert proxies.made == [WORLD, WORLD]


def test_flipped_bits_are_all_found() -> None:
    flips.run(draws(50, 200), 1, hush)


def test_a_storm_over_frames_counts_nothing_twice() -> None:
    frame_storm.run(draws(250, 2_000), 1, hush)
