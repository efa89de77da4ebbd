"""Elastic training of Horovod with workers that are lost and that join.

Each worker logs the number of ranks of each step in its state. So a test can repeat the training in
one process: if a step was lost, made twice or summed over others, the parameters differ.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch import nn

import reducer_client.horovod as hvd
from reducer_client.registry.daemon import DaemonRegistry
from tests.support.elastic_job import ElasticJob
from tests.support.ranks import Outcome, RunningRanks, Tell, start_ranks
from tests.support.wait import LOST_SECONDS, wait_until

JOB = "elastic"
COMMIT_EVERY = 3
PATIENCE = 60.0


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)


def _loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 4, generator=made, dtype=torch.float64)
    return (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()


def _check(sizes: Sequence[int], trained: nn.Module) -> None:
    """Make the same steps alone."""
    model = _model(seed=7)
    optimizer = _optimizer(model)
    for step, size in enumerate(sizes):
        optimizer.zero_grad()
        for rank in range(size):
            (_loss(model, step, rank) / size).backward()
        optimizer.step()
    for alone, parameter in zip(model.parameters(), trained.parameters(), strict=True):
        assert torch.allclose(alone, parameter, rtol=1e-6, atol=1e-9), "a step was not made once"


def _worker(_: int, __: int, folder: Path, variables: dict[str, str], tell: Tell) -> Any:
    """Train until the file ``end`` exists. Without commits while ``hold`` exists. A worker whose
    file ``leave-PID`` exists raises an error.
    """
    torch.set_num_threads(1)
    os.environ.update(variables)
    hvd.init()
    model = _model(seed=7 if hvd.rank() == 0 else os.getpid())
    optimizer = hvd.DistributedOptimizer(_optimizer(model), model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, sizes=())
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    begins: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        begins.append(len(state.sizes))
        tell((hvd.rank(), hvd.size(), len(state.sizes)))
        while True:
            files = [(folder / name).exists() for name in ("end", "hold")]
            ends, holds = hvd.allreduce(torch.tensor(files).int(), op=hvd.Max, name="files")
            if ends:
                return
            if (folder / f"leave-{os.getpid()}").exists():
                raise LookupError("I am gone")
            step = len(state.sizes)
            state.optimizer.zero_grad()
            _loss(state.model, step, hvd.rank()).backward()
            state.optimizer.step()
            state.sizes = (*state.sizes, hvd.size())
            (folder / f"steps-{os.getpid()}").write_text(f"{len(state.sizes)} {hvd.size()}")
            if not holds and len(state.sizes) % COMMIT_EVERY == 0:
                state.commit()

    train(state)
    assert len(resets) == len(begins) - 1
    if hvd.rank() == 0:
        _check(state.sizes, model)
    hvd.shutdown()
    return state.sizes, [parameter.tolist() for parameter in model.parameters()]


class _Job:
    """Real reducers with a registry, and workers that are started one by one."""

    def __init__(self, folder: Path, workers: int, stack: ExitStack, **variables: str) -> None:
        self.folder = folder
        self.reducers = stack.enter_context(ElasticJob(folder, reducers=2))
        self._stack = stack
        self._variables = {
            "REDUCER_ADDRS": ",".join(self.reducers.addresses),
            "REDUCER_JOB": JOB,
            "REDUCER_WORKERS": str(workers),
            "REDUCER_WORKER_SILENCE": "1",
            "HOROVOD_ELASTIC_TIMEOUT": "60",
            **variables,
        }

    def start(self) -> RunningRanks:
        ranks = start_ranks(1, _worker, self.folder, self._variables, talk=True)
        return self._stack.enter_context(ranks)

    def found(self, count: int) -> list[RunningRanks]:
        """Start workers. Returns them by their ranks."""
        workers = [self.start() for _ in range(count)]
        return [worker for _, worker in sorted(
            (in_[0], worker) for worker, in_ in zip(workers, _all_in(workers, count), strict=True)
        )]  # fmt: skip

    def document(self) -> bytes:
        with self._registry() as registry:
            return registry.get("main").value

    def wait_for_leases(self, count: int) -> None:
        with self._registry() as registry:
            wait_until(lambda: len(registry.get("main").leases) == count, PATIENCE, "leases")

    def train(self, worker: RunningRanks, size: int) -> None:
        """Wait until the worker has made a few steps as one of ``size`` ranks."""
        file = self.folder / f"steps-{worker.pid(0)}"

        def steps() -> int:
            text = file.read_text() if file.exists() else ""
            return int(text.split()[0]) if text.endswith(f" {size}") else 0

        first = wait_until(steps, PATIENCE, f"no step of {size} ranks")
        wait_until(lambda: steps() >= first + 2 * COMMIT_EVERY, PATIENCE, "no further steps")

    def end(self, *workers: RunningRanks) -> set[int]:
        """End the job. Returns the numbers of ranks with which steps were made."""
        (self.folder / "end").touch()
        outcomes = [worker.collect_one(0, PATIENCE) for worker in workers]
        first, *others = [_value(outcome) for outcome in outcomes]
        assert all(other == first for other in others), "the workers differ"
        return set(first[0])

    @contextmanager
    def _registry(self) -> Iterator[DaemonRegistry]:
        registry = DaemonRegistry(self.reducers.addresses[0], JOB)
        try:
            yield registry
        finally:
            registry.close()


def _value(outcome: Outcome) -> Any:
    assert outcome.error is None and outcome.reported, outcome.trace
    return outcome.value


def _all_in(workers: Sequence[RunningRanks], size: int) -> list[tuple[int, int, int]]:
    """Wait until the workers train as ``size`` ranks. Returns (rank, size, step) of each."""
    ins = []
    for worker in workers:
        said = worker.receive(0, PATIENCE)
        while said[1] != size:
            said = worker.receive(0, PATIENCE)
        ins.append(said)
    assert sorted(in_[0] for in_ in ins) == list(range(len(workers))), ins
    assert len({in_[2] for in_ in ins}) == 1, f"they began at different steps: {ins}"
    return ins


def test_workers_are_lost_and_join(tmp_path: Path) -> None:
    """Rank 0 dies; a worker joins; the new rank 0 and the newcomer die at the same time."""
    with ExitStack() as stack:
        job = _Job(tmp_path, 3, stack)
        first, second, third = job.found(3)
        job.train(first, 3)
        first.kill(0)
        killed_at = time.monotonic()
        ins = _all_in([second, third], 2)
        assert time.monotonic() - killed_at < LOST_SECONDS, "they waited for the end of its lease"
        assert [in_[0] for in_ in ins] == [0, 1] and ins[0][2] % COMMIT_EVERY == 0
        job.train(second, 2)
        late = job.start()
        ins = _all_in([second, third, late], 3)
        assert [in_[0] for in_ in ins] == [0, 1, 2] and ins[0][2] > COMMIT_EVERY
        job.train(late, 3)
        second.kill(0)
        late.kill(0)
        _all_in([third], 1)
        job.train(third, 1)
        assert job.end(third) == {1, 2, 3}


def test_a_worker_that_stood_still_joins_again(tmp_path: Path) -> None:
    """A worker that stood still comes back as the last rank. One that fails is lost, too."""
    with ExitStack() as stack:
        job = _Job(tmp_path, 3, stack)
        first, second, third = job.found(3)
        first.kill(0, signal.SIGSTOP)
        _all_in([second, third], 2)
        first.kill(0, signal.SIGCONT)
        ins = _all_in([second, third, first], 3)
        assert [in_[0] for in_ in ins] == [0, 1, 2]
        (tmp_path / f"leave-{third.pid(0)}").touch()
        _all_in([second, first], 2)
        assert isinstance(third.collect_one(0, PATIENCE).error, LookupError)
        job.end(second, first)


def test_with_too_few_workers_all_raise_one_error(tmp_path: Path) -> None:
    """The next workers found the job anew."""
    with ExitStack() as stack:
        job = _Job(tmp_path, 3, stack, REDUCER_MIN_WORKERS="3")
        first, second, third = job.found(3)
        second.kill(0)
        for worker in (first, third):  # how the reducers say why may differ
            text = str(worker.collect_one(0, PATIENCE).error)
            assert "rank 1 of job" in text and "is lost" in text, text
            assert "2 workers are left, and the job needs 3 (min_workers)" in text, text
        ended_at = time.monotonic()
        workers = job.found(3)
        assert time.monotonic() - ended_at < LOST_SECONDS, "they waited for the worker that died"
        job.end(*workers)


def test_a_newcomer_dies_before_it_is_in(tmp_path: Path) -> None:
    """Its lease still stands when the others commit, so they meet to take it in."""
    with ExitStack() as stack:
        job = _Job(tmp_path, 2, stack)
        hold = tmp_path / "hold"
        hold.touch()
        workers = job.found(2)
        newcomer = job.start()
        job.wait_for_leases(3)
        newcomer.kill(0)
        hold.unlink()
        _all_in(workers, 2)
        assert job.end(*workers) == {2}


def test_the_registry_is_restarted_and_loses_its_file(tmp_path: Path) -> None:
    with ExitStack() as stack:
        job = _Job(tmp_path, 3, stack)
        first, second, third = job.found(3)
        job.reducers.kill_registry()
        first.kill(0)
        job.reducers.restart_registry()
        _all_in([second, third], 2)
        job.reducers.kill_registry()
        job.reducers.restart_registry(lose=True)
        wait_until(job.document, PATIENCE, "nobody wrote the document again")
        late = job.start()
        _all_in([second, third, late], 3)
        job.end(second, third, late)
