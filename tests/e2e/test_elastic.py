"""Elastic jobs over real processes: workers die, stand still, join; the registry dies, too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Daemon
from tests.support.elastic_job import ElasticJob, ElasticWorker


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ElasticJob]:
    with ElasticJob(tmp_path, worker_silence=1.0) as job:
        yield job


def start(job: ElasticJob, workers: int, steps: int, **options: object) -> list[ElasticWorker]:
    all_ = [job.start(name, workers=workers, steps=steps, **options) for name in range(workers)]
    job.wait_for_step(all_, 5)
    return all_


def ended_alike(job: ElasticJob, *workers: ElasticWorker) -> None:
    for worker in workers:
        assert worker.wait() == 0, worker.errors
    job.check()
    ends = {worker.first("end")["digest"] for worker in workers}
    assert len(ends) == 1, "the workers ended with different parameters"


def test_a_killed_worker_leaves_the_sums_and_a_new_one_joins(job: ElasticJob) -> None:
    first, second, third = start(job, 3, 150)
    second.kill()
    job.wait_for_members(first, 2)
    late = job.start(3, workers=3, steps=150)
    ended_alike(job, first, third, late)
    assert late.first("in")["era"] == 1 and late.first("in")["step"] > 5
    assert len(late.steps[-1]["ledgers"]) == 3 and late.steps[-1]["ledgers"][0] == [[50_000, 3]]


def test_rank_0_may_die(job: ElasticJob) -> None:
    first, second, third = start(job, 3, 150)
    first.kill()
    job.wait_for_members(second, 2)
    late = job.start(3, workers=3, steps=150)
    ended_alike(job, second, third, late)


@pytest.mark.long  # 10 CPU seconds; test_horovod_workers.py has such a worker
def test_a_worker_that_stood_still_is_told_that_the_others_went_on(job: ElasticJob) -> None:
    first, second, third = start(job, 3, 400)
    second.stop()
    stopped_at = time.monotonic()
    job.wait_for_members(first, 2)
    assert time.monotonic() - stopped_at < 3.0, "silence of 1 s, and 1 s more"
    second.go_on()
    assert second.wait() == 3
    error = second.first("error")
    assert error["kind"] == "PeerLostError" and error["reason"] in ("excluded", "lost"), error
    ended_alike(job, first, third)


def test_the_lowest_rank_may_leave_and_the_job_be_founded_again(job: ElasticJob) -> None:
    """Regression: the rank that makes the routes waited 10 s for the others, and they for it."""
    first = job.start(0, workers=3, steps=20)
    others = [job.start(name, workers=3, steps=80) for name in (1, 2)]
    assert first.wait() == 0, first.errors
    ended_alike(job, *others)
    at = {step["step"]: step["at"] for step in others[0].steps}
    assert max(at[n + 1] - at[n] for n in range(15, 30)) < 5.0
    again = job.start(3, workers=1, steps=3)
    began = time.monotonic()
    assert again.wait() == 0, again.errors
    assert time.monotonic() - began < 10.0, "it waited for workers that had left"
    assert again.first("in")["step"] == 0


def test_reducers_come_and_go(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, reducers=1) as job:
        listing = tmp_path / "reducers"
        listing.write_text(job.addresses[0])
        options = {"discover": str(listing), "end": str(tmp_path / "end")}
        first, second = start(job, 2, 1 << 30, **options)
        with Daemon() as late:
            listing.write_text(f"{job.addresses[0]} {late.address}")
            job.wait_until(lambda: first.steps[-1]["era"] == 1, "no era with the new reducer")
            job.wait_for_step([first, second], first.steps[-1]["step"] + 5)
            (run,) = late.stats()["lanes"][0]["report"]["runs"]
            assert run["rounds"] > 5 and run["connected"] == 2
            listing.write_text(job.addresses[0])
            job.wait_until(lambda: first.steps[-1]["era"] == 2, "no era without the reducer")
        (tmp_path / "end").touch()
        ended_alike(job, first, second)


def test_with_too_few_workers_the_survivors_name_who_is_gone(job: ElasticJob) -> None:
    first, second, third = start(job, 3, 5_000, min_workers=3)
    second.kill()
    for worker in (first, third):
        assert worker.wait() == 3
        text = worker.first("error")["text"]
        assert worker.first("error")["kind"] == "PeerLostError"
        assert "rank 1 of job 'elastic' is lost" in text and "needs 3 (min_workers)" in text, text
    job.check()


def test_a_worker_with_another_model_disturbs_nobody(job: ElasticJob) -> None:
    first, second = start(job, 2, 250)
    other = job.start(2, workers=2, steps=250, sizes=[50_000, 2, 9_000])
    assert other.wait() == 3
    error = other.first("error")
    assert error["kind"] == "JoinError", error
    assert "'w1' is <f4 of shape (2,) here, <f4 of shape (1,) there" in error["text"], error
    ended_alike(job, first, second)
    assert {step["era"] for step in first.steps} == {0}


def test_steps_go_on_without_the_registry_and_a_loss_waits_for_it(job: ElasticJob) -> None:
    first, second, third = start(job, 3, 300, reducer_wait=60)
    job.kill_registry()
    at = first.steps[-1]["step"]
    job.wait_for_step([first, second, third], at + 20)
    second.kill()
    time.sleep(1.0)
    job.restart_registry()
    job.wait_for_members(first, 2)
    ended_alike(job, first, third)


@pytest.mark.long  # 18 CPU seconds; test_horovod_workers.py has the same loss
def test_a_registry_that_lost_its_file_is_written_again(job: ElasticJob) -> None:
    first, second, third = start(job, 3, 500)
    job.kill_registry()
    job.restart_registry(lose=True)
    job.wait_until(lambda: "written again" in first.errors, "nobody wrote the registry again")
    second.kill()
    job.wait_for_members(first, 2)
    late = job.start(3, workers=3, steps=500)
    ended_alike(job, first, third, late)


def test_a_registry_that_lost_its_file_while_a_worker_died_ends_the_job(job: ElasticJob) -> None:
    first, second, third = start(job, 3, 5_000)
    job.kill_registry()
    second.kill()
    job.restart_registry(lose=True)
    for worker in (first, third):
        assert worker.wait() == 3
        text = worker.first("error")["text"]
        assert "rank 1 of job 'elastic' is lost" in text, text
        assert "the registry has lost its state" in text, text
