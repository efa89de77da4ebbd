"""B11: every reducer is restarted by SIGTERM, one after another, under load: no step fails."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.soak import Figures, Say
from tests.soak.training import Training
from tests.support.reducers import Reducers

REDUCERS = 3
BACK_SECONDS = 60.0  # a slot that goes out again and again stays out for up to 30 s


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` restarts; each reducer sums again before the next one goes."""
    rng = random.Random(seed)
    with (
        ThreadPoolExecutor(1) as pool,
        Reducers(REDUCERS, "--log-level", "error") as reducers,
        Training(reducers.addresses, "rolling", seed=seed) as training,
    ):
        for restart in range(count):
            index = restart % REDUCERS
            for _ in range(rng.randint(1, 10)):
                training.turn()
            restarted = pool.submit(reducers.restart, index)
            training.until(restarted.done)
            assert restarted.result() == 0, f"restart {restart}: {restarted.result()}"
            training.until(partial(reducers.contributions, index), BACK_SECONDS)
            if restart % 20 == 19:
                say(f"{restart + 1} of {count} restarts")
        accounts = training.finish()
    return {
        "restarts": f"{count}",
        "turns": f"{accounts[0].turns:,}",
        "failed steps": "0",
        "slowest turn": f"{max(account.slowest for account in accounts):.2f} s",
    }
