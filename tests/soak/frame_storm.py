"""B7: frames that are cut, changed, repeated, delayed, stalled: nothing is counted twice."""

from __future__ import annotations

from tests.soak import Figures, Say
from tests.support.groups import Groups, Values
from tests.support.harms import Storm
from tests.support.proxy import Proxies
from tests.support.reducers import Reducers

SHARE = 0.05  # of all frames
_WORLD = 3
_COUNT = 6_007


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` rounds; every result of every rank is compared bit for bit."""
    values = Values(seed, _WORLD, _COUNT)
    storm = Storm(seed, SHARE)
    with (
        Reducers(3, "--log-level", "error") as reducers,
        Proxies(reducers.addresses, storm, framed=True) as proxies,
    ):
        with Groups(_WORLD, proxies.addresses, "storm") as groups:
            storm.active = True
            for turn in range(count):
                groups.turn(values, turn)
                if turn % 1000 == 999:
                    say(f"{turn + 1:,} of {count:,} rounds, {storm.done.total():,} faults")
            storm.active = False
            duplicates = sum(lane["duplicates"] for lane in groups.ranks[0].stats()["reducers"])
        links = sum(proxies.made)
    harmed = storm.done.total() / storm.frames
    assert SHARE / 2 < harmed < SHARE * 2, f"{harmed:.1%} of the frames were harmed"
    return {
        "rounds": f"{count:,}",
        "frames": f"{storm.frames:,}",
        "faults": f"{storm.done.total():,}: "
        + ", ".join(f"{kind} {times:,}" for kind, times in storm.done.most_common()),
        "links": f"{links:,}",
        "second copies dropped": f"{duplicates:,} (by what the lanes still know)",
        "wrong sums": "0",
    }
