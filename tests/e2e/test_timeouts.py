"""A step ends after its timeout, and the error names the absent ranks."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch as reducer_torch
from reducer_client import PeerLostError, RoundTimeoutError
from reducer_client.config import keep_gloo_on_loopback
from tests.support.ranks import Tell, join, run_ranks, start_ranks

WORLD = 3
# Long enough for DDP's start over gloo on a busy machine.
STEP = timedelta(seconds=6)


def _wait(
    rank: int, world: int, addresses: list[str], job: str, late: list[int], tell: Tell
) -> None:
    with join(rank, world, addresses, job) as group:
        if rank in late:
            tell.hear()
        work = group.all_reduce(np.ones(3), key="grad")
        if rank not in late:
            started = time.monotonic()
            with pytest.raises(RoundTimeoutError) as caught:
                work.wait(timedelta(seconds=0.5))
            assert time.monotonic() - started < 10
            tell((str(caught.value), caught.value.rank))
        assert work.wait(30).tolist() == [world] * 3


@pytest.mark.parametrize(("late", "named"), [([1], "rank 1"), ([0, 2], "ranks 0, 2")])
def test_a_wait_that_ends_names_who_is_absent(
    addresses: list[str], job: str, late: list[int], named: str
) -> None:
    """The error names them at once, long before the reducers report a stall."""
    with start_ranks(WORLD, _wait, addresses, job, late, talk=True) as ranks:
        for rank in {*range(WORLD)} - {*late}:
            text, lost = ranks.receive(rank, 90)
            assert text == f"key 'grad', round 0: not finished after 0.5 s; absent: {named}"
            assert lost == (late[0] if len(late) == 1 else None)
        for rank in late:
            ranks.send(rank)
        outcomes = ranks.collect(90)
    assert [o.error for o in outcomes] == [None] * WORLD, outcomes


def _train(rank: int, world: int, addresses: list[str], job: str, store: str, tell: Tell) -> None:
    """Rank 2 takes part in three steps, and starts the fourth after the others gave up."""
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    init = f"file://{store}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world, timeout=STEP)
    model = DistributedDataParallel(nn.Linear(64, 64))
    group = join(rank, world, addresses, job)
    state = reducer_torch.attach(model, group)
    for _ in range(3):  # in the second step DDP itself uses gloo
        model(torch.ones(4, 64)).sum().backward()
    tell("worked")
    if rank == 2:
        tell.hear()
    started = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(4, 64)).sum().backward()
    took = time.monotonic() - started
    # The first rank to give up tells the others the reason.
    text = "key 'ddp0/bucket0', round 3: not finished after 6 s; absent: rank 2"
    assert text in str(caught.value), caught.value
    error = state.last_error
    assert isinstance(error, (RoundTimeoutError, PeerLostError)), error
    if isinstance(error, RoundTimeoutError):
        assert error.rank == 2
    else:
        assert (error.rank in (0, 1), error.reason) == (True, "failed")
    if rank != 2:
        assert took >= STEP.total_seconds() - 1
        tell(type(error).__name__)
    group.close()


def test_ddp_heeds_the_timeout_of_its_process_group(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    arguments = (addresses, job, str(tmp_path / "store"))
    with start_ranks(WORLD, _train, *arguments, talk=True) as ranks:
        for rank in range(WORLD):
            assert ranks.receive(rank, 90) == "worked"
        assert "RoundTimeoutError" in [ranks.receive(rank, 90) for rank in (0, 1)]
        ranks.send(2)
        outcomes = ranks.collect(90)
    assert [o.error for o in outcomes] == [None] * WORLD, outcomes


def _timeouts(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    with join(rank, world, addresses, job) as group:
        assert reducer_torch.ReductionState(group).timeout is None  # so the general 300 s apply
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        default = dist.distributed_c10d.default_pg_timeout.total_seconds()
        assert reducer_torch.ReductionState(group).timeout == default
        mine = dist.new_group([0], timeout=timedelta(seconds=77))
        assert reducer_torch.ReductionState(group, process_group=mine).timeout == 77
        model = DistributedDataParallel(nn.Linear(4, 4), process_group=mine)
        assert reducer_torch.attach(model, group).timeout == 77
        asked = timedelta(seconds=9)
        model = DistributedDataParallel(nn.Linear(4, 4), process_group=mine)
        assert reducer_torch.attach(model, group, timeout=asked).timeout == asked
    with join(rank, world, addresses, job + "-short", step_timeout=5) as group:
        assert reducer_torch.ReductionState(group, process_group=mine).timeout == 5


def test_what_was_asked_for_comes_before_what_torch_says(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    run_ranks(1, _timeouts, addresses, job, str(tmp_path / "store"))
