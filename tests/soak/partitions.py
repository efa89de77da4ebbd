"""B24, B3, B4: packets between a worker and a reducer vanish, in one direction or both."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.soak import Figures, Say, lost_workers, milliseconds
from tests.soak.training import Training
from tests.support.cluster import Daemon
from tests.support.ranks import RunningRanks
from tests.support.router import Router

WORKERS = ("w0", "w1", "w2")
REDUCERS = ("r0", "r1", "r2")
PORT = 2222
BACK_SECONDS = 60.0
_LIVE = re.compile(r"route \d+, (\d+ of \d+) slots live")
_ALL = f"{len(REDUCERS)} of {len(REDUCERS)}"
Cut = tuple[tuple[str, str], ...]  # (source, target) of what is dropped


def cut_off(host: str, others: Sequence[str]) -> Cut:
    """Everything between the host and the others, both ways."""
    return tuple(pair for other in others for pair in ((host, other), (other, host)))


def matrix() -> Iterator[list[tuple[str, Cut]]]:
    """Each worker and each reducer: up, down, both ways; then each reducer from everybody."""
    for worker, reducer in itertools.product(WORKERS, REDUCERS):
        yield [
            (f"up of {worker} and {reducer}", ((worker, reducer),)),
            (f"down of {worker} and {reducer}", ((reducer, worker),)),
            (f"both of {worker} and {reducer}", cut_off(worker, [reducer])),
        ]
    yield [(f"all of {reducer}", cut_off(reducer, WORKERS)) for reducer in REDUCERS]


class Site:
    """A reducer on each host; ranks go to theirs."""

    def __init__(self, router: Router, daemons: dict[str, Daemon]) -> None:
        self.router = router
        self.daemons = daemons

    @property
    def addresses(self) -> list[str]:
        return [f"{self.router.address(name)}:{PORT}" for name in REDUCERS]

    @property
    def namespaces(self) -> list[str]:
        return [self.router.namespace(name) for name in WORKERS]

    def all_live(self) -> bool:
        """As every lane has logged it last."""
        found = [_LIVE.findall(daemon.log) for daemon in self.daemons.values()]
        return all(not routes or routes[-1] == _ALL for routes in found)


@contextmanager
def site() -> Iterator[Site]:
    """Raises LabError where there can be none."""
    with ExitStack() as stack:
        router = stack.enter_context(Router([*WORKERS, *REDUCERS]))
        daemons = {}
        for name in REDUCERS:
            options = ["--host", router.address(name), "--port", str(PORT), "--insecure"]
            daemons[name] = stack.enter_context(Daemon(*options, prefix=router.command(name, [])))
        yield Site(router, daemons)


def partition(place: Site, training: Training, cut: Cut) -> float:
    """Seconds from the cut to the end of a turn that began after it; heals it afterwards."""
    for _ in range(3):
        training.turn()
    for source, target in cut:
        place.router.drop(source, target)
    at = time.monotonic()
    took = training.turn_after(at)[1] - at
    for _ in range(3):
        training.turn()
    place.router.heal()
    training.until(place.all_live, BACK_SECONDS)
    return took


def lose_worker(place: Site, job: str, victim: int) -> list[float]:
    """Seconds until each survivor has been told of a worker that nobody hears any more."""

    def vanish(ranks: RunningRanks) -> None:
        for source, target in cut_off(WORKERS[victim], REDUCERS):
            place.router.drop(source, target)

    took = lost_workers.lose(
        place.addresses, job, victim, vanish, world=len(WORKERS), namespaces=place.namespaces
    )
    place.router.heal()
    return took


def run(count: int, seed: int, say: Say) -> Figures:
    """The matrix `count` times, and then each worker lost.

    Few cuts to a job: what goes out again and again stays out for longer each time.
    """
    took: dict[str, list[float]] = {}
    world = len(WORKERS)
    with site() as place:
        spaces = place.namespaces
        for number, cuts in enumerate([*matrix()] * count):
            name = f"partitions{number}"
            with Training(
                place.addresses, name, world=world, seed=seed, namespaces=spaces
            ) as training:
                for what, cut in cuts:
                    seconds = partition(place, training, cut)
                    took.setdefault(what.split()[0], []).append(seconds)
                    say(f"{what}: {seconds:.2f} s")
                training.finish()
        took["worker"] = [
            seconds
            for victim in list(range(world)) * count
            for seconds in lose_worker(place, f"lost{victim}", victim)
        ]
    return {name: milliseconds(seconds) for name, seconds in took.items()}
