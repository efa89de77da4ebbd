"""A reducer or a rank that dies while real NCCL trains on GPUs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.support import gpu_job
from tests.support.arrays import Array, expected
from tests.support.gpu_job import SECONDS, Job, Member, set_up
from tests.support.libnccl import REMOTE_ERROR, LibraryError
from tests.support.reducers import Reducers

pytestmark = pytest.mark.gpu

COUNT = 500_000
BEFORE, DURING, AFTER = 5, 60, 20  # steps


def _gradient(step: int, rank: int) -> Array:
    return np.random.default_rng((step, rank)).standard_normal(COUNT, dtype=np.float32)


def _train(member: Member) -> str:
    digest = hashlib.sha256()
    for step in range(BEFORE + DURING + AFTER):
        if step == BEFORE:
            member.tell("going")
        if step == BEFORE + DURING:
            member.tell.hear()  # by now the reducer is dead
        digest.update(member.all_reduce(_gradient(step, member.rank), "sum").tobytes())
    return digest.hexdigest()


def _by_hand(world: int) -> str:
    digest = hashlib.sha256()
    for step in range(BEFORE + DURING + AFTER):
        digest.update(expected("sum", [_gradient(step, r) for r in range(world)]).tobytes())
    return digest.hexdigest()


def test_a_reducer_that_is_killed_costs_no_bit(
    library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    job = Job(reducers.addresses, tmp_path, library)
    with gpu_job.start(2, job, _train) as ranks:
        for rank in range(2):
            assert ranks.receive(rank, SECONDS) == "going"
        reducers.kill(1)
        before = reducers.bytes_in()
        for rank in range(2):
            ranks.send(rank)
        ended = gpu_job.end(ranks, 2, reducers, job)
    assert ended.values == [_by_hand(2)] * 2
    ended.assert_set_up()
    assert ended.came - before >= AFTER * 2 * 4 * COUNT  # all by the reducer that is left


def _until_error(member: Member) -> int:
    member.tell("going")
    while True:
        try:
            member.all_reduce(_gradient(0, member.rank), "sum")
        except LibraryError as error:
            member.abort()
            return error.result


def test_a_rank_that_is_killed_is_an_error_on_the_other(
    library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    job = Job(reducers.addresses, tmp_path, library)
    with gpu_job.start(2, job, _until_error) as ranks:
        for rank in range(2):
            assert ranks.receive(rank, SECONDS) == "going"
        ranks.kill(1)
        ranks.receive(0, SECONDS)
        ranks.send(0)
        outcome = ranks.collect_one(0)
    assert outcome.error is None, outcome.trace
    assert outcome.value == REMOTE_ERROR
    assert set_up(job.log(0).read_text(encoding="utf-8")) == {0}
