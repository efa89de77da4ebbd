"""Which ranks share a host, what they tell each other, and reasons for no hierarchy."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from reducer_client.config import find_local_ranks
from reducer_client.hosted.machine import machine_id
from reducer_client.torch.hierarchy.layout import (
    HostRecord,
    Layout,
    find_obstacle,
    unpack,
)
from tests.support.ranks import run_ranks

CLONE_NEWNET = 0x40000000
A, B = b"a" * 16, b"b" * 16
# Two hosts of two ranks.
GOOD = [HostRecord(2, rank % 2, None, False, (A, B)[rank // 2]) for rank in range(4)]


def _in_a_container(rank: int, world: int) -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    return machine_id()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
def test_two_containers_of_one_machine_are_two_hosts() -> None:
    """Containers do not share a loopback interface."""
    (other,) = run_ranks(1, _in_a_container)
    assert len(other) == 16
    assert other != machine_id()


def test_hosts_of_equally_many_neighbouring_ranks_have_a_hierarchy() -> None:
    assert find_obstacle(GOOD) == ""
    assert find_obstacle([replace(place, local_rank=-1) for place in GOOD]) == ""
    # The ranks of a launcher are one host, even if the machine runs two launchers.
    assert find_obstacle([replace(place, machine=A) for place in GOOD]) == ""
    assert find_obstacle([replace(GOOD[0], wanted=True), *GOOD[1:]]) == ""


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([*GOOD[:3], replace(GOOD[3], wanted=False)], "rank 3 has hierarchy=False"),
        (
            [*GOOD[:2], replace(GOOD[2], local_size=4), GOOD[3]],
            "rank 0 is one of 2.*rank 2 one of 4",
        ),
        (
            [*GOOD[:3], replace(GOOD[3], cuda=True)],
            "only one of the ranks 0 and 3 has CUDA devices",
        ),
        ([replace(place, local_size=1) for place in GOOD], "no host has several ranks"),
        ([replace(place, local_size=0) for place in GOOD], "no host has several ranks"),
        (GOOD[:2], "2 ranks are not several hosts of 2"),
        ([*GOOD, GOOD[0]], "5 ranks are not several hosts of 2"),
        ([GOOD[0], GOOD[2], GOOD[1], GOOD[3]], "rank 1 is local rank 0: expected 1"),
        (
            [replace(GOOD[i], local_rank=-1) for i in (0, 2, 1, 3)],
            "rank 1 is on another host than rank 0",
        ),
    ],
)
def test_other_layouts_have_none_and_say_why(places: list[HostRecord], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(find_obstacle(places))


def test_what_a_rank_says_travels_as_bytes() -> None:
    for wanted in (None, True, False):
        place = replace(GOOD[1], wanted=wanted, cuda=bool(wanted))
        assert unpack(place.pack()) == place


def test_numbers_of_ranks() -> None:
    layout = Layout(hosts=3, local_size=4, rank=6, cuda=False)
    assert (layout.host, layout.local_rank) == (1, 2)
    assert [layout.neighbour(r) for r in range(4)] == [4, 5, 6, 7]
    assert [layout.counterpart(host) for host in range(3)] == [2, 6, 10]


def test_the_launcher_says_how_many_ranks_are_here() -> None:
    assert find_local_ranks({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) == (1, 2)
    assert find_local_ranks({}) == (None, None)
