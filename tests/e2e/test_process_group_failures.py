"""Failures under ``init_process_group("reducer")``, and the errors that a program gets."""

from __future__ import annotations

import hashlib
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from reducer_client import (
    JoinError,
    MismatchError,
    PeerLostError,
    ReducerUnavailableError,
    RoundTimeoutError,
)
from reducer_client.torch import Options, raising
from reducer_client.torch.backend import forming
from reducer_client.torch.calls import key_scopes
from tests.support.process_group import process_group
from tests.support.ranks import Tell, run_ranks, start_ranks
from tests.support.reducers import Reducers
from tests.support.torch_names import all_gather_single
from tests.support.wait import wait_until


def _mismatches(rank: int, world: int) -> None:
    """Every rank gets the error at once; the group still works."""
    for what, call in {
        "all_reduce sum float32 x 3": lambda: dist.all_reduce(torch.ones(3 + rank)),
        "float64": lambda: dist.all_reduce(torch.ones(3).to([torch.float32, torch.float64][rank])),
        "broadcast": lambda: (
            dist.broadcast(torch.ones(3), src=0) if rank else dist.all_reduce(torch.ones(3))
        ),
    }.items():
        with pytest.raises(MismatchError, match=r"rank 0: .*rank 1: ") as caught:
            call()
        assert what in str(caught.value)


def _sparse_mismatches(rank: int, world: int) -> None:
    """Row numbers of a larger tensor would make a smaller one write beyond its end."""
    for what, tensor in {
        "float32 of shape (4,)": torch.zeros(4 if rank == 0 else 50_000_000).to_sparse(),
        "of shape (4, 3), sparse in 2 of 2 dimensions": torch.ones(4, 3).to_sparse(2 - rank),
        "int64 of shape (2,)": torch.ones(2, dtype=[torch.int64, torch.int32][rank]).to_sparse(),
    }.items():
        with pytest.raises(MismatchError, match=r"on rank 0: .*; on rank 1: ") as caught:
            dist.all_reduce(tensor)
        assert what in str(caught.value) and caught.value.rank == 1


def _refusals(rank: int, world: int) -> None:
    """Each rank refuses alone, before anything is sent."""
    with pytest.raises(TypeError, match=r"torch\.int16.*expected one of .*float32"):
        dist.all_reduce(torch.ones(3, dtype=torch.int16))
    with pytest.raises(TypeError, match=r"'mean' of bool: expected sum, max"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), op=dist.ReduceOp.AVG)
    with pytest.raises(ValueError, match=r"all_gather over 2 ranks: expected 6 .* got 7 "):
        all_gather_single(torch.ones(7), torch.ones(3))
    with pytest.raises(TypeError, match="expected all on the cpu"):
        dist.all_reduce(torch.ones(3, device="meta"))


def _monitored(rank: int, world: int) -> None:
    """Before torch 2.14 only gloo may have a monitored barrier."""
    if torch.__version__ < "2.14":
        with pytest.raises(ValueError, match="monitored_barrier"):
            dist.monitored_barrier()
        return
    dist.monitored_barrier(timeout=timedelta(seconds=20))


def _refused_alone(rank: int, world: int) -> None:
    """A call that was refused on one rank alone does not count there."""
    if rank == 0:
        for asynchronous in (False, True):
            with pytest.raises(TypeError, match="bor"):
                dist.all_reduce(torch.ones(3), dist.ReduceOp.BOR, async_op=asynchronous)
    dist.barrier()
    done = dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    assert torch.equal(done[0], torch.full((3,), 2.0))
    again = dist.all_reduce(done[0], async_op=True).get_future().then(_all_reduce_value)
    assert torch.equal(again.wait(), torch.full((3,), 8.0))


def _all_reduce_value(done: Any) -> torch.Tensor:
    tensor = done.value()[0].clone()
    dist.all_reduce(tensor)
    return tensor


def _barriers(rank: int, world: int) -> None:
    """A barrier waits for earlier calls, and not for later ones."""
    threads = dist.group.WORLD._calls._threads
    tasks: list[Any] = []
    tensor = torch.ones(3)
    if rank == 0:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threads, "submit", tasks.append)  # a thread that is slow to begin
            barrier = dist.barrier(async_op=True)
        work = dist.all_reduce(tensor, async_op=True)
        (task,) = tasks
        threads.submit(task)
        barrier.wait()
    else:
        dist.barrier(async_op=True).wait()
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()


def _inference(rank: int, world: int) -> None:
    """Inference tensors can be written only in inference mode, in whatever thread."""
    with torch.inference_mode():
        turned = torch.ones(2, 3).t()
        work = dist.all_reduce(turned, async_op=True)
        work.get_future().wait()
        gathered = [torch.zeros(3) for _ in range(world)]
        dist.all_gather(gathered, torch.full((3,), rank + 1.0), async_op=True).get_future().wait()
        halved = torch.ones(3)
        dist.all_reduce(halved, dist._make_nccl_premul_sum(0.5), async_op=True).wait()
    assert torch.equal(turned, torch.full((3, 2), 2.0)) and torch.equal(halved, torch.ones(3))
    assert [tensor.tolist() for tensor in gathered] == [[1.0] * 3, [2.0] * 3]


def _chained(rank: int, world: int) -> None:
    """Nested callbacks match between ranks, whether registered before or after completion."""
    told, tensor = torch.zeros(1), torch.ones(2)
    if rank == 0:
        dist.recv(told, 1)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        work.wait()

    def add(value: float) -> Any:
        def call(_: object) -> Any:
            tensor = torch.full((2,), value)
            return dist.all_reduce(tensor, async_op=True).get_future()

        return call

    first = work.get_future().then(add(1))
    second = work.get_future().then(add(10))
    third = first.then(add(100))
    if rank == 1:
        dist.send(told, 0)
    sums = [future.wait().wait()[0].tolist() for future in (first, second, third)]
    assert sums == [[2.0] * 2, [20.0] * 2, [200.0] * 2]


def _completed(rank: int, world: int) -> None:
    """A synchronous call is done when torch gets its work."""
    options = dist.AllreduceOptions()
    options.asyncOp = False
    turned = torch.ones(2, 3).t()
    work = dist.group.WORLD.allreduce([turned], options)
    assert work.is_completed()
    assert torch.equal(turned, torch.full((3, 2), 2.0))
    assert work.is_success() and work.exception() is None


def _patient(rank: int, world: int) -> None:
    """A wait that times out fails alone: the call and the group go on."""
    told, tensor = torch.zeros(1), torch.ones(3)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(RoundTimeoutError, match="absent: rank 1"):
            work.wait(timedelta(milliseconds=200))
        dist.send(told, 1)
        assert work.wait()
    else:
        dist.recv(told, 0)
        dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((3,), 2.0))


def _device(rank: int, world: int) -> None:
    """The properties that torch asks for after ``init_process_group(device_id=...)``."""
    for name in ("cpu", "cuda:0"):
        backend: Any = dist.group.WORLD._get_backend(torch.device(name))
        assert backend is dist.group.WORLD and not backend.supports_splitting


def _callbacks(rank: int, world: int) -> None:
    """An exception in a callback fails only its own future."""
    done = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    failed = done.then(lambda _: 1 // 0).then(lambda before: before.value())
    with pytest.raises(ZeroDivisionError):
        failed.wait()
    assert torch.equal(done.wait()[0], torch.full((3,), 2.0))


def _nested(rank: int, world: int) -> None:
    """Calls in callbacks match between ranks, in any order and on any thread."""
    told = torch.zeros(1)
    if rank == 0:  # rank 1 has registered its callbacks; ours find all works done
        dist.recv(told, 1)
    works = [dist.all_reduce(torch.full((2,), 1.0 + i), async_op=True) for i in range(4)]
    if rank == 0:
        assert all(work.wait() for work in works)

    def nested(done: Any) -> torch.Tensor:
        again = dist.all_reduce(done.value()[0].clone(), async_op=True).get_future().wait()
        return dist.all_reduce(again[0] * 10, async_op=True).get_future().wait()[0]

    order = range(4) if rank == 0 else reversed(range(4))
    results = {index: works[index].get_future().then(nested) for index in order}
    if rank == 1:
        dist.send(told, 0)
    assert {i: f.wait()[0].item() for i, f in results.items()} == {
        i: 80.0 * (1 + i) for i in range(4)
    }


def _late_callback(rank: int, world: int) -> None:
    """Names of callbacks are reused: a later callback waits for the earlier one of its name."""
    later, told = threading.Event(), torch.zeros(1)

    def add(number: int) -> Any:
        def call(_: object) -> float:
            if number == 0 and rank == 0:
                later.wait(0.5)
            tensor = torch.full((2,), float(number))
            dist.all_reduce(tensor)
            if number == 2:
                later.set()
            return float(tensor[0])

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_scopes, "_NAMES", 2)
        if rank == 1:  # rank 0 has registered its callbacks, each with its own thread
            dist.recv(told, 0)
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(4)]
        sums = [work.get_future().then(add(number)) for number, work in enumerate(works)]
        if rank == 0:
            dist.send(told, 1)
        assert [future.wait() for future in sums] == [0.0, 2.0, 4.0, 6.0]


def _wrong_calls(rank: int, world: int, addresses: list[str], job: str, store: str) -> int:
    before = threading.active_count()
    with process_group(rank, world, addresses, store, 20, job=job) as group:
        for check in (
            _device,
            _mismatches,
            _sparse_mismatches,
            _refusals,
            _monitored,
            _refused_alone,
            _barriers,
            _inference,
            _completed,
            _patient,
            _callbacks,
            _nested,
            _chained,
            _late_callback,
        ):
            check(rank, world)
        dist.barrier()
    group.shutdown()  # a second shutdown does nothing
    with pytest.raises(RuntimeError, match="closed"):
        group.allreduce([torch.ones(3)])
    return threading.active_count() - before


def test_wrong_calls_are_named_and_the_group_works_on(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    assert run_ranks(2, _wrong_calls, addresses, job, str(tmp_path / "store")) == [0, 0]


def test_ranks_and_reducers_that_are_missing_are_named(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    run_ranks(2, _absent, addresses, job, str(tmp_path / "store"))


def _absent(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    with (
        pytest.raises(ReducerUnavailableError, match=r"127\.0\.0\.1:1"),
        process_group(rank, world, ["127.0.0.1:1"], f"{store}-nowhere", seconds=20, job=job),
    ):
        pass
    with (
        pytest.raises(ValueError if rank == 0 else JoinError, match=r"no reducer addresses"),
        process_group(rank, world, None, f"{store}-none", job=job, hosted=False),
    ):
        pass
    if rank == 0:
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(JoinError, match=r"not all of 2 ranks .* 2 s; missing ranks: 1$"),
        ):
            told: list[str] = []
            patch.setattr(forming, "_TELL_AFTER", 0.5)
            patch.setattr(forming.logger, "warning", lambda text, *args: told.append(text % args))
            with process_group(rank, world, addresses, store, seconds=2, job=job):
                pass
        (line,) = told
        assert "waits for ranks, up to 2 s; missing ranks: 1 " in line
        Path(f"{store}-given-up").touch()
    else:
        wait_until(Path(f"{store}-given-up").exists, 60)
        with (
            pytest.raises(JoinError, match=r"rank 0 failed: .*; missing ranks: 1$"),
            process_group(rank, world, addresses, store, job=job),
        ):
            pass
    _again(rank, world, addresses, job, f"{store}-again")
    _late(rank, world, addresses, job, f"{store}-late")


def _late(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    """A rank that is late for a timed-out call must not meet a later call of the others."""
    with process_group(rank, world, addresses, store, seconds=3, job=job):
        if rank == 1:
            wait_until(Path(f"{store}-timed-out").exists, 60)
        error = PeerLostError if rank else RoundTimeoutError
        with pytest.raises(error, match=r"not finished after 3 s; absent: rank 1"):
            dist.all_reduce(torch.ones(3))
        Path(f"{store}-timed-out").touch()


def _again(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    """Successive groups over one store, as after a restart by an agent.

    Three groups: torch counts names from 0 again only after the first is destroyed.
    """
    shared = dist.FileStore(store, world)
    for step in (1.0, 2.0, 3.0):
        dist.init_process_group(
            "reducer",
            store=shared,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=20),
            pg_options=Options(addresses=addresses, job=job),
        )
        # The store for the ranks' addresses has no entry of an earlier group.
        met = dist.group.WORLD._inner._store
        assert not met.check([f"met/{rank}"])
        met.set(f"met/{rank}", "")
        parts = torch.zeros(world)
        dist.all_to_all_single(parts, torch.arange(world) + step)
        assert parts.tolist() == [rank + step] * world
        dist.destroy_process_group()


def _train(
    rank: int,
    world: int,
    addresses: list[str],
    job: str,
    store: str,
    steps: int,
    workers: int,
    tell: Tell,
) -> str:
    """Train; returns a digest of the parameters. Each rank tells each step that it begins."""
    with process_group(rank, world, addresses, store, job=job):
        torch.manual_seed(7)
        module = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 8)
        )
        model = DistributedDataParallel(module, bucket_cap_mb=0.1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        data = torch.Generator().manual_seed(rank)
        loader = DataLoader(
            TensorDataset(torch.randn(steps * 8, 64, generator=data)),
            batch_size=8,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        for step, (inputs,) in enumerate(loader):
            tell(step)
            tell.hear()
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def _run(reducers: Reducers, job: str, store: Path, kills: tuple[int, ...]) -> str:
    """Run 12 steps; before the steps `kills` a reducer is killed and restarted."""
    arguments = (reducers.addresses, job, str(store), 12, 1)
    with start_ranks(2, _train, *arguments, talk=True) as ranks:
        for step in range(12):
            for rank in range(2):
                assert ranks.receive(rank, 120) == step
            if step in kills:
                reducers.kill(step % 2)
                reducers.start(step % 2)
            for rank in range(2):
                ranks.send(rank)
        outcomes = ranks.collect(60)
    assert all(o.error is None and o.reported for o in outcomes), outcomes
    (digest,) = {o.value for o in outcomes}
    return str(digest)


@pytest.mark.long  # 18 s; test_ddp_failover.py kills reducers under DDP
def test_a_killed_reducer_leaves_no_trace_in_the_parameters(job: str, tmp_path: Path) -> None:
    with Reducers(2) as reducers:
        calm = _run(reducers, job + "-calm", tmp_path / "calm", ())
        assert _run(reducers, job + "-storm", tmp_path / "storm", (3, 6, 8)) == calm


def _fail(rank: int, world: int, addresses: list[str], job: str, store: str, tell: Tell) -> None:
    try:
        with raising():
            _train(rank, world, addresses, job, store, 1000, 0, tell)
    except PeerLostError as error:
        tell((time.monotonic(), repr(error), error.rank))
        raise


def test_a_killed_rank_is_named_by_backward_on_the_other(job: str, tmp_path: Path) -> None:
    with Reducers(2) as reducers:
        arguments = (reducers.addresses, job, str(tmp_path / "store"))
        with start_ranks(2, _fail, *arguments, talk=True) as ranks:
            for step in range(3):
                for rank in range(2):
                    assert ranks.receive(rank, 120) == step
                for rank in range(2 if step < 2 else 1):
                    ranks.send(rank)
            killed = time.monotonic()
            ranks.kill(1)
            at, text, rank = ranks.receive(0, 30)
            assert "rank 1" in text and rank == 1
            assert at - killed < 5  # the promise is 1 s on a quiet machine
            outcome = ranks.collect_one(0, 30)
            assert isinstance(outcome.error, PeerLostError)
