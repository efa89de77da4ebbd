"""B17: bits flipped in transit, both ways. Each is found, and none reaches a sum."""

from __future__ import annotations

import random

from reducer.wire.codes import MessageKind
from reducer.wire.header import HEADER_SIZE
from tests.soak import Figures, Say
from tests.support.groups import Groups, Values
from tests.support.harms import Trigger, flip
from tests.support.proxy import DIRECTIONS, Proxies
from tests.support.reducers import Reducers

_WORLD = 2
_COUNT = 20_011
_LEAST_CHUNK = 8_192  # bytes; the body of every data frame of these rounds has more


def run(count: int, seed: int, say: Say) -> Figures:
    """Every flip must cost exactly one link: whoever gets the frame closes the connection."""
    rng = random.Random(seed)
    values = Values(seed, _WORLD, _COUNT)
    trigger = Trigger()
    with (
        Reducers(2, "--log-level", "error") as reducers,
        Proxies(reducers.addresses, trigger, framed=True) as proxies,
        Groups(_WORLD, proxies.addresses, "flips") as groups,
    ):
        groups.turn(values, 0)
        for turn in range(1, count + 1):
            direction = rng.choice(DIRECTIONS)
            kind = MessageKind.CONTRIBUTION if direction == "up" else MessageKind.RESULT
            # As many in headers as in bodies, which are far larger.
            first, last = rng.choice(((0, HEADER_SIZE), (HEADER_SIZE, _LEAST_CHUNK)))
            trigger.arm(direction, kind, flip(rng.randrange(8 * first, 8 * last)))
            before = sum(proxies.made)
            groups.turn(values, turn)
            assert trigger.fired.is_set(), f"seed {seed}, turn {turn}: no frame was changed"
            found = sum(proxies.made) - before
            assert found == 1, f"seed {seed}, turn {turn}: a flip was found {found} times"
            if turn % 500 == 0:
                say(f"{turn:,} of {count:,} flips, all found")
    return {"flips": f"{count:,}", "found": f"{count:,}", "wrong sums": "0"}
