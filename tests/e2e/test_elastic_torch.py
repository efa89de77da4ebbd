"""`Elastic` over real processes: workers that train are killed, and others join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.elastic_job import ENDLESS, SLOW, ElasticJob, ElasticWorker
from tests.support.frameworks import needs_extra

pytestmark = needs_extra("torch")

SAMPLES = 601
MIB = 1 << 20


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ElasticJob]:
    with ElasticJob(tmp_path, program="elastic_trainer") as job:
        yield job


def start(job: ElasticJob, count: int, **options: object) -> list[ElasticWorker]:
    return [add(job, name, workers=count, **options) for name in range(count)]


def add(job: ElasticJob, name: int, **options: object) -> ElasticWorker:
    """A worker that trains until `end`."""
    endless = {"steps": ENDLESS, "pause": SLOW, "end": str(job.folder / "end")}
    return job.start(name, **{**endless, **options})


def end(job: ElasticJob, *workers: ElasticWorker) -> None:
    """All end with the epoch, and are equal."""
    (job.folder / "end").touch()
    for worker in workers:
        assert worker.wait() == 0, worker.errors
    job.check()
    for what in ("digest", "moments", "rate", "epoch"):
        assert len({str(worker.first("end")[what]) for worker in workers}) == 1, what


@pytest.mark.long  # 28 CPU seconds; test_elastic.py has such kills and joins
def test_a_worker_that_joins_after_a_kill_takes_over_the_training(job: ElasticJob) -> None:
    first, second, third = start(job, 3)
    job.wait_for_step([first, second, third], 3)
    second.kill()
    job.wait_for_members(first, 2)
    late = add(job, 3, workers=3)
    job.wait_until(lambda: len(late.steps) > 5, "the late worker made no steps")
    end(job, first, third, late)
    came = late.first("in")
    (before,) = (step for step in first.steps if step["new_era"])
    assert came["era"] == 1 and came["step"] == before["step"] + 1 > 5
    for what in ("digest", "moments", "rate"):
        assert came[what] == before[what], what
    assert first.steps[-1]["members"] == [0, 1, 2]


@pytest.mark.long  # 21 CPU seconds; test_elastic_torch_steps.py has the rules of strict mode
def test_in_strict_mode_each_sample_counts_once_an_epoch(job: ElasticJob) -> None:
    options = {"on_worker_loss": "shrink_strict", "bucket_cap_mb": 2000 / MIB}
    workers = [
        add(job, name, workers=3, dies_at=17 if name == 1 else -1, **options) for name in range(3)
    ]
    job.wait_until(lambda: workers[2].steps and workers[2].steps[-1]["epoch"] > 1, "no 2 epochs")
    end(job, workers[0], workers[2])
    assert workers[0].first("end")["redone"] == 1, "the step of the loss was to be summed again"
    visited: dict[int, Counter[int]] = {}
    for worker in workers:
        for step in worker.steps:
            assert step["rank"] in step["members"]
            visited.setdefault(step["epoch"], Counter()).update(step["samples"])
    epochs = workers[0].first("end")["epoch"]
    assert epochs >= 2
    for epoch in range(epochs):
        assert visited[epoch] == Counter(range(SAMPLES)), f"epoch {epoch}"
