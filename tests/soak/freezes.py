"""B3: a reducer is stopped (SIGSTOP) for a while: the others take over, and it harms nothing."""

from __future__ import annotations

import random
import time

from tests.soak import Figures, Say, milliseconds
from tests.soak.training import Training
from tests.support.reducers import Reducers

REDUCERS = 3
BACK_SECONDS = 60.0


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` freezes; how long until a turn is done that began after it."""
    rng = random.Random(seed)
    took = []
    with (
        Reducers(REDUCERS, "--log-level", "error") as reducers,
        Training(reducers.addresses, "freezes", seed=seed) as training,
    ):
        for freeze in range(count):
            for _ in range(rng.randint(1, 10)):
                training.turn()
            took.append(_freeze(reducers, training, freeze % REDUCERS))
            say(f"{freeze + 1} of {count} freezes, {took[-1]:.2f} s")
        training.finish()
    return {"freezes": f"{count}", "to the next result": milliseconds(took), "wrong sums": "0"}


def _freeze(reducers: Reducers, training: Training, index: int) -> float:
    """Seconds to the next result; returns when the reducer sums again."""
    reducers.freeze(index)
    at = time.monotonic()
    took = training.turn_after(at)[1] - at
    for _ in range(10):
        training.turn()
    reducers.thaw(index)
    before = reducers.contributions(index)
    training.until(lambda: reducers.contributions(index) > before, BACK_SECONDS)
    return took
