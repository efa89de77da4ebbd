"""Workers join and leave a job that trains on digits with `Elastic`, until the model is as good.

All workers of a step have the same bits, and each worker that joins has the state of the others.
Each sample counts exactly once in each epoch. The accuracy at the end is at most a hundredth below
that of an undisturbed training of as many epochs.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.soak import Figures, Say, milliseconds
from tests.support.elastic_job import ENDLESS, ElasticJob, ElasticWorker
from tests.support.elastic_trainer import DIGITS

LEAST, MOST = 2, 4
SILENCE = 3.0  # seconds; a worker that stands still is lost then. Four import torch beside others
TOLERANCE = 0.01
HOUR = 3600.0  # for an undisturbed training of as many epochs
HARMS = ("kill", "kill", "leave", "stop")


class Crowd:
    """The workers of a job, by name."""

    def __init__(self, job: ElasticJob, count: int, **options: object) -> None:
        self.job = job
        self.options = options
        self.workers = [self._start(name, count) for name in range(count)]
        self.started = count
        job.wait_for_step(self.workers, 3)

    def join(self) -> float:
        """Seconds from a worker's being ready until it is in. It has made steps then."""
        worker = self._start(self.started, LEAST)
        self.started += 1
        self.workers.append(worker)
        for each in self.workers:
            self.job.wait_for_members(each, len(self.workers))
        came = worker.first("in")
        (before,) = [
            step for step in self.workers[0].steps
            if step["new_era"] and step["step"] == came["step"] - 1
        ]  # fmt: skip
        assert (came["digest"], came["moments"]) == (before["digest"], before["moments"])
        return float(came["seconds"])

    def lose(self, how: str, worker: ElasticWorker) -> list[float]:
        """Seconds until each of the others has finished a step without the worker."""
        self.workers.remove(worker)
        at = time.monotonic()
        if how == "leave":
            self._leave(worker.name).touch()
        else:
            worker.kill() if how == "kill" else worker.stop()
        for each in self.workers:
            self.job.wait_for_members(each, len(self.workers))
        if how == "leave":
            assert worker.wait() == 0, worker.errors
        worker.end()
        return [self._first_without(each, at) - at for each in self.workers]

    def finish(self) -> float:
        """The accuracy."""
        (self.job.folder / "end").touch()
        return self.wait()

    def wait(self) -> float:
        """Wait until all have ended, alike. The accuracy."""
        for worker in self.workers:
            assert worker.process.wait(HOUR) == 0, worker.errors
        self.job.check()
        check_visits(self.job.workers)
        ends = [worker.first("end") for worker in self.workers]
        assert len({(end["digest"], end["moments"]) for end in ends}) == 1
        return min(float(end["accuracy"]) for end in ends)

    def _start(self, name: int, count: int) -> ElasticWorker:
        return self.job.start(
            name, workers=count, steps=ENDLESS, data="digits", end=str(self.job.folder / "end"),
            leave=str(self._leave(name)), on_worker_loss="shrink_strict", **self.options,
        )  # fmt: skip

    def _leave(self, name: int) -> Path:
        return self.job.folder / f"leave{name}"

    def _first_without(self, worker: ElasticWorker, at: float) -> float:
        for step in worker.steps:
            if step["at"] > at and len(step["members"]) == len(self.workers):
                return float(step["at"])
        raise AssertionError(f"worker {worker.name} finished no step of {len(self.workers)}")


def check_visits(workers: list[ElasticWorker]) -> None:
    """Each sample is in the sums of exactly one step of each complete epoch.

    A worker that was lost after its last contribution may have said nothing of this step. The
    others know which samples it was dealt.
    """
    dealt: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for worker in workers:
        for step in worker.steps:
            by_rank = dict(step["dealt"])
            assert by_rank.get(step["rank"], []) == step["samples"]
            samples = [n for rank in step["members"] for n in by_rank.get(rank, [])]
            at = step["era"], step["step"]
            assert dealt.setdefault(at, (step["epoch"], samples)) == (step["epoch"], samples), at
    epochs: dict[int, Counter[int]] = {}
    for epoch, samples in dealt.values():
        epochs.setdefault(epoch, Counter()).update(samples)
    for epoch in range(max(epochs)):
        assert epochs[epoch] == Counter(range(DIGITS)), f"epoch {epoch}"


@contextmanager
def _job() -> Iterator[ElasticJob]:
    with (
        tempfile.TemporaryDirectory() as folder,
        ElasticJob(Path(folder), 2, SILENCE, program="elastic_trainer") as job,
    ):
        yield job


def disturbed(count: int, seed: int, say: Say) -> tuple[Figures, float, int]:
    """The figures, the accuracy, and the epochs of the training."""
    rng = random.Random(seed)
    joins: list[float] = []
    losses: dict[str, list[float]] = {how: [] for how in HARMS}
    with _job() as job:
        crowd = Crowd(job, LEAST + 1, pause=0.01, bucket_cap_mb=0.01)
        for number in range(count):
            size = len(crowd.workers)
            if size == LEAST or (size < MOST and rng.random() < 0.5):
                joins.append(crowd.join())
                say(f"{number + 1} of {count}: a worker is in after {joins[-1]:.2f} s")
            else:
                how, worker = rng.choice(HARMS), rng.choice(crowd.workers)
                took = crowd.lose(how, worker)
                losses[how] += took
                say(f"{number + 1} of {count}: {how}, {max(took):.2f} s to the next step")
        accuracy = crowd.finish()
        end = crowd.workers[0].first("end")
        steps = sum(len(worker.steps) for worker in job.workers)
        redone = len({
            (step["era"], step["step"])
            for worker in job.workers
            for before, step in pairwise(worker.steps)
            if step["redone"] > before["redone"]
        })  # fmt: skip
    figures = {
        "a new worker, ready to in": milliseconds(joins),
        **{f"{how} to the next step": milliseconds(took) for how, took in losses.items()},
        "steps of the job, and of all its workers": f"{end['step']:,}, {steps:,}",
        "steps that were summed again": f"{redone:,}",
        "workers of a step with differing bits, hangs": "0",
    }
    return figures, accuracy, int(end["epoch"])


def undisturbed(epochs: int) -> float:
    """The accuracy."""
    with _job() as job:
        crowd = Crowd(job, LEAST + 1, pause=0.0, epochs=max(1, epochs))
        return crowd.wait()


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` joins and losses, one at a time, with LEAST to MOST workers."""
    figures, accuracy, epochs = disturbed(count, seed, say)
    other = undisturbed(epochs)
    assert accuracy >= other - TOLERANCE, (accuracy, other)
    return {**figures, "accuracy, and undisturbed": f"{accuracy:.4f}, {other:.4f}"}
