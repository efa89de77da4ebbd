"""Killed reducers change no bit of the parameters of a DDP training run."""

from __future__ import annotations

import hashlib
import math
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch as reducer_torch
from reducer_client import PeerLostError
from reducer_client.config import keep_gloo_on_loopback
from tests.support.ranks import Tell, join, start_ranks
from tests.support.reducers import Reducers

WORLD = 3
STEPS = 60
KILL_EVERY = 1.0  # seconds


def _train(
    rank: int,
    world: int,
    addresses: list[str],
    job: str,
    store: str,
    steps: int,
    pause: float,
    tell: Tell,
) -> str:
    """Train, and return a digest of the parameters. Rank 0 tells each step that it begins.

    `pause`: seconds between steps, in which the test can do harm.
    """
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 8))
    model = DistributedDataParallel(module)
    data = torch.Generator().manual_seed(rank)
    with join(rank, world, addresses, job) as group:
        reducer_torch.attach(model, group)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for step in range(steps):
            if rank == 0:
                tell(step)
            inputs = torch.randn(16, 64, generator=data)
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause)
    dist.destroy_process_group()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def _run(reducers: Reducers, job: str, store: Path, kills: bool) -> tuple[str, int]:
    arguments = (reducers.addresses, job, str(store), STEPS, 0.1 if kills else 0.0)
    killed, due = 0, math.inf
    with start_ranks(WORLD, _train, *arguments, talk=True) as ranks:
        for _ in range(STEPS):
            if ranks.receive(0, 60) == 1:  # all ranks have joined
                due = time.monotonic()
            if kills and time.monotonic() >= due:
                victim = killed % 3
                reducers.kill(victim)
                reducers.start(victim)
                killed, due = killed + 1, time.monotonic() + KILL_EVERY
        outcomes = ranks.collect(60)
    assert all(o.error is None and o.reported for o in outcomes), outcomes
    (digest,) = {o.value for o in outcomes}
    return digest, killed


def test_kills_leave_no_trace_in_the_parameters(job: str, tmp_path: Path) -> None:
    with Reducers(3) as reducers:
        calm, _ = _run(reducers, job + "-calm", tmp_path / "calm", kills=False)
        stormy, killed = _run(reducers, job + "-storm", tmp_path / "storm", kills=True)
    assert killed >= 3
    assert stormy == calm


def _fail(rank: int, world: int, addresses: list[str], job: str, store: str, tell: Tell) -> str:
    try:
        return _train(rank, world, addresses, job, store, 10_000, 0.1, tell)
    except RuntimeError as error:
        tell((time.monotonic(), str(error), isinstance(error, PeerLostError)))
        raise


def test_a_killed_worker_is_named_by_the_hook_of_every_other(job: str, tmp_path: Path) -> None:
    with Reducers(2) as reducers:
        arguments = (reducers.addresses, job, str(tmp_path / "store"))
        with start_ranks(WORLD, _fail, *arguments, talk=True) as ranks:
            for _ in range(3):
                ranks.receive(0, 60)
            killed = time.monotonic()
            ranks.kill(2)
            for rank in (0, 1):
                said = ranks.receive(rank, 30)
                while isinstance(said, int):
                    said = ranks.receive(rank, 30)
                at, text, _ = said
                assert "rank 2" in text
                assert at - killed < 5  # the promise is 1 s on a quiet machine
