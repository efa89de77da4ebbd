"""B15: a job that keeps a reducer as busy as its quota lets it, beside one that just works."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor

from tests.soak import Figures, Say
from tests.soak.crowds import turns_in
from tests.soak.training import Training
from tests.support.cluster import Daemon

COUNT = 100_003  # elements of a key
QUIET = (2, 2)  # ranks, keys of a turn
NOISY = (2, 16)
LEAST_KEPT = 0.9  # of the share that the quiet job has beside a copy of itself
LEAST_REPEATS = 3  # one alone is off by 5 % at times


def measure(seconds: float, repeats: int, seed: int, say: Say) -> tuple[float, Figures]:
    """Turns a second of the quiet job beside each neighbour, in turn, and its part of its share."""
    rates: dict[str, list[float]] = {}
    with (
        Daemon("--log-level", "error") as shared,
        Daemon("--log-level", "error") as other,
        _job(shared, "quiet", QUIET, seed) as quiet,
    ):
        neighbours = {
            "a copy of itself": (shared, QUIET),
            "the noisy one": (shared, NOISY),
            "the noisy one at another reducer": (other, NOISY),
        }
        for repeat in range(repeats):
            for name, (daemon, shape) in neighbours.items():
                with _job(daemon, f"{name} {repeat}", shape, seed) as neighbour:
                    neighbour.turn()
                    with ThreadPoolExecutor(1) as pool:
                        other_rate = pool.submit(turns_in, neighbour, seconds)
                        rates.setdefault(name, []).append(turns_in(quiet, seconds))
                        other_rate.result()
                    neighbour.finish()
            say(", ".join(f"{name} {found[-1]:.0f}" for name, found in rates.items()))
        quiet.finish()
    middle = {name: statistics.median(found) for name, found in rates.items()}
    fair, noisy, apart = middle.values()
    return noisy / fair, {
        **{f"turns/s beside {name}": f"{rate:.0f}" for name, rate in middle.items()},
        "of the fair share": f"{noisy / fair:.0%}",
        "of that with the same processes at another reducer": f"{noisy / apart:.0%}",
    }


def _job(daemon: Daemon, name: str, shape: tuple[int, int], seed: int) -> Training:
    world, keys = shape
    return Training([daemon.address], name, world=world, keys=keys, count=COUNT, seed=seed)


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` times 5 s beside each neighbour, three times at least."""
    kept, figures = measure(5.0, max(count, LEAST_REPEATS), seed, say)
    assert kept >= LEAST_KEPT, figures
    return figures
