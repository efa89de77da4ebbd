"""Workers of an elastic job are killed, stopped and cut off, and new ones take their places.

After each loss, every survivor goes on with the same bits. Every sum is, to the unit, the sum of
the contributions that its ledger names.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reducer_tools.netlab import LabError
from tests.soak import Figures, Say, milliseconds
from tests.support.elastic_job import ENDLESS, ElasticJob, ElasticWorker
from tests.support.router import Router

WORLD = 4
REDUCERS = 2
SILENCE = 1.0  # seconds; a worker that stands still or is cut off is lost then
HARMS = ("kill", "kill", "kill", "stop", "cut")


class Crowd:
    """Four workers, each on a host of its own where there are namespaces."""

    def __init__(self, job: ElasticJob, rng: random.Random, pause: float) -> None:
        self.job = job
        self.rng = rng
        self.pause = pause
        self.count = 0
        self.by_place = {place: self.start(place) for place in range(WORLD)}
        job.wait_for_step(list(self.by_place.values()), 5)

    def start(self, place: int) -> ElasticWorker:
        namespace = "" if self.job.router is None else self.job.router.namespace(f"w{place}")
        self.count += 1
        return self.job.start(
            self.count - 1, workers=WORLD, steps=ENDLESS, namespace=namespace,
            pause=self.pause, end=str(self.job.folder / "end"),
        )  # fmt: skip

    def harm(self, how: str, place: int) -> None:
        worker, router = self.by_place[place], self.job.router
        if how == "cut" and router is not None:
            for number in range(REDUCERS):
                router.drop(f"w{place}", f"r{number}")
                router.drop(f"r{number}", f"w{place}")
        elif how == "kill":
            worker.kill()
        else:
            worker.stop()

    def lose(self, how: str, places: list[int]) -> list[float]:
        """Seconds until each survivor has finished a step without the workers of these places."""
        survivors = [w for place, w in self.by_place.items() if place not in places]
        at = time.monotonic()
        for place in places:
            self.harm(how, place)
        left = WORLD - len(places)
        took = []
        for worker in survivors:
            self.job.wait_for_members(worker, left)
            took.append(self.first_without(worker, at, left) - at)
        for place in places:
            self.by_place.pop(place).end()
        if self.job.router is not None:
            self.job.router.heal()
        return took

    def first_without(self, worker: ElasticWorker, at: float, left: int) -> float:
        for step in worker.steps:
            if step["at"] > at and {n for _, n in step["ledgers"][-1]} == {left}:
                return float(step["at"])
        raise AssertionError(f"worker {worker.name} finished no step of {left} workers")

    def refill(self) -> list[float]:
        """Start a worker for each empty place. Seconds from its being ready until it is in."""
        places = sorted(set(range(WORLD)) - set(self.by_place))
        for place in places:
            self.by_place[place] = self.start(place)
        for worker in self.by_place.values():
            self.job.wait_for_members(worker, WORLD)
        return [self.by_place[place].first("in")["seconds"] for place in places]

    def end(self) -> None:
        (self.job.folder / "end").touch()
        ends = set()
        for worker in self.by_place.values():
            assert worker.wait() == 0, worker.errors
            ends.add(worker.first("end")["digest"])
        assert len(ends) == 1, "the workers ended with different parameters"


@contextmanager
def _job(folder: Path) -> Iterator[ElasticJob]:
    hosts = [f"w{n}" for n in range(WORLD)] + [f"r{n}" for n in range(REDUCERS)]
    try:
        with Router(hosts) as router, ElasticJob(folder, REDUCERS, SILENCE, router) as job:
            yield job
    except LabError:  # not root: no cuts, which count as stops
        with ElasticJob(folder, REDUCERS, SILENCE) as job:
            yield job


def run(count: int, seed: int, say: Say, pause: float = 0.01) -> Figures:
    """`count` workers are lost, one or two at a time. `pause`: seconds after each step."""
    rng = random.Random(seed)
    took: dict[str, list[float]] = {how: [] for how in HARMS}
    joins: list[float] = []
    with tempfile.TemporaryDirectory() as folder, _job(Path(folder)) as job:
        crowd = Crowd(job, rng, pause)
        lost = 0
        while lost < count:
            how = rng.choice(HARMS)
            places = rng.sample(sorted(crowd.by_place), min(rng.choice((1, 1, 2)), count - lost))
            took[how] += crowd.lose(how, places)
            lost += len(places)
            joins += crowd.refill()
            say(f"{lost} of {count}: {how} of {places}, {max(took[how][-2:]):.2f} s")
        crowd.end()
        job.check()
        steps = sum(len(worker.steps) for worker in job.workers)
    return {
        **{f"{how} to the next step": milliseconds(took[how]) for how in dict.fromkeys(HARMS)},
        "a new worker, ready to in": milliseconds(joins),
        "steps whose sums were checked": f"{steps:,}",
        "wrong sums, differing bits, hangs": "0",
    }
