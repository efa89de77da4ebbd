"""Elastic training: a rank is killed and restarted, and the result does not change."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import reducer_client.horovod as hvd
from reducer_client.horovod import HorovodInternalError
from tests.support.digits import digest, together
from tests.support.frameworks import needs_extra
from tests.support.horovod import as_tensors, be_horovod, make_model, values
from tests.support.ranks import RunningRanks, Tell, start_ranks
from tests.support.ranks import values as values_of

pytestmark = needs_extra("sklearn")

WORLD = 2
SAMPLES, BATCH, EPOCHS = 480, 20, 2
STEPS = SAMPLES // BATCH // WORLD * EPOCHS
COMMIT_EVERY = 5


def _make_state() -> hvd.elastic.TorchState:
    model = make_model(seed=int.from_bytes(os.urandom(2)))  # all ranks take rank 0's
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=3)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
    if hvd.rank() == 0:
        state.model.load_state_dict(make_model(seed=7).state_dict())
    return state


def _train(state: Any, tell: Tell, stops: tuple[int, ...]) -> str:
    """Train; at the steps `stops`, tell the test and wait for its answer."""
    data = TensorDataset(*as_tensors(together(WORLD)))
    while state.sampler.epoch < EPOCHS:
        for images, labels in DataLoader(data, BATCH, sampler=state.sampler):
            if state.step in stops:
                tell(state.step)
                tell.hear()
            state.optimizer.zero_grad()
            nn.functional.cross_entropy(state.model(images), labels).backward()
            state.optimizer.step()
            state.step += 1
            state.sampler.record_batch(state.step, len(labels))
            if state.step % COMMIT_EVERY == 0:
                state.commit()
        state.sampler.set_epoch(state.sampler.epoch + 1)
    return digest(values(state.model))


def _worker(
    _: int, __: int, rank: int, addresses: list[str], job: str, stops: tuple[int, ...], tell: Tell
) -> tuple[str, list[int], int]:
    """The digest at the end, the steps at which training began, and the number of resets."""
    be_horovod(rank, WORLD, addresses, job)
    alone = hvd.ProcessSet([0])
    hvd.init(process_sets=[alone])
    state = _make_state()
    began: list[int] = []
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])

    @hvd.elastic.run
    def train(state: Any) -> str:
        began.append(state.step)
        assert alone.process_set_id == 1
        return _train(state, tell, stops)

    ended = train(state)
    assert state.step == STEPS
    hvd.shutdown()
    return ended, began, len(resets)


def _die_at_once(_: int, __: int, rank: int, addresses: list[str], job: str) -> None:
    """Die after init, while the other rank goes on to create its process set."""
    be_horovod(rank, WORLD, addresses, job)
    hvd.init()
    os._exit(0)


def _undisturbed() -> str:
    """The same training in one process: both ranks' gradients are added in order and halved."""
    (images, labels), model = as_tensors(together(WORLD)), make_model(seed=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for epoch in range(EPOCHS):
        order = list(range(SAMPLES))
        random.Random(3 + epoch).shuffle(order)
        for start in range(0, SAMPLES, BATCH * WORLD):
            optimizer.zero_grad()
            for rank in range(WORLD):
                part = order[start + rank : start + BATCH * WORLD : WORLD]
                nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= WORLD
            optimizer.step()
    return digest(values(model))


def _start(rank: int, addresses: list[str], job: str, stops: tuple[int, ...]) -> RunningRanks:
    """Start one rank, so that each rank can be restarted alone."""
    return start_ranks(1, _worker, rank, addresses, job, stops, talk=True)


@pytest.mark.timeout(170)
def test_ranks_that_are_killed_and_started_again_change_nothing(
    addresses: list[str], job: str
) -> None:
    """Rank 1 dies at step 7, two steps after a commit, and after its restart; rank 0 at step 13."""
    with ExitStack() as stack:

        def start(rank: int, *stops: int) -> RunningRanks:
            return stack.enter_context(_start(rank, addresses, job, stops))

        zero, one = start(0, 7, 13), start(1, 7)
        for ranks in (zero, one):
            assert ranks.receive(0, 90) == 7
        one.kill(0)
        zero.send(0)
        with start_ranks(1, _die_at_once, 1, addresses, job) as ranks:
            assert not ranks.collect(90)[0].reported
        one = start(1, 13)
        assert zero.receive(0, 90) == 7  # the step repeated, with the new rank
        zero.send(0)
        for ranks in (zero, one):
            assert ranks.receive(0, 90) == 13
        zero.kill(0)
        zero = start(0)
        one.send(0)
        assert one.receive(0, 90) == 13
        one.send(0)
        outcomes = values_of([zero.collect_one(0, 90), one.collect_one(0, 90)])
        assert outcomes[0][0] == outcomes[1][0] == _undisturbed()
        assert [outcome[1:] for outcome in outcomes] == [([10], 0), ([5, 10], 1)]


def _check_sampler(rank: int) -> None:
    """Five samples do not divide by two ranks; both ranks get the sample that is left."""
    sampler = hvd.elastic.ElasticSampler(range(5), shuffle=False)
    assert list(sampler) == ([1, 3, 0] if rank else [0, 2, 4]) and len(sampler) == 3
    sampler.record_batch(0, 2)
    sampler.reset()
    assert list(sampler) == [4]
    again = hvd.elastic.ElasticSampler(range(5), shuffle=False)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == [4]
    sampler.set_epoch(1)
    assert len(sampler) == 3


def _check_state() -> None:
    """An assigned attribute replaces the old one, also for models."""
    model = nn.Linear(1, 1)
    state = hvd.elastic.TorchState(nn.Linear(1, 1), epoch=3)
    state.model = model
    kept = model.weight.item()
    nn.init.constant_(model.weight, 5.0)
    state.epoch = 4
    state.restore()
    assert state.model is model and (model.weight.item(), state.epoch) == (kept, 3)


def _check_a_scheduler() -> None:
    """A scheduler has its own state, and cannot be pickled with its optimizer."""
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    state = hvd.elastic.TorchState(optimizer=optimizer, scheduler=scheduler)
    state.sync()
    scheduler.last_epoch = 7
    state.restore()
    assert state.scheduler is scheduler and scheduler.last_epoch == 0


def _check_a_failed_sync(rank: int) -> None:
    """Rank 0 failed to take over the commit of rank 1, so it must not broadcast its own state."""
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, value=rank)
    if rank == 1:
        state.commit()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(HorovodInternalError, match="lost"):
        patch.setattr(state, "receive", _lose)
        state.sync()
    state.restore()
    state.sync()
    assert state.value == 1


def _lose(root: int) -> None:
    raise HorovodInternalError("rank 1 is lost")


def _raise_first_of(errors: list[HorovodInternalError]) -> None:
    if errors:
        raise errors.pop()


def _leave(_: int, __: int, rank: int, addresses: list[str], job: str) -> list[str]:
    """The ranks meet again on request, also if one is lost meanwhile. A mistake of the program is
    no loss. At the end rank 1 leaves for good.
    """
    be_horovod(rank, WORLD, addresses, job)
    os.environ["HOROVOD_ELASTIC_TIMEOUT"] = "2"
    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    said: list[str] = []
    _check_sampler(rank)
    _check_state()
    _check_a_scheduler()
    _check_a_failed_sync(rank)
    losses = [HorovodInternalError("rank 1 is lost", reason="lost")] if rank == 0 else []
    state.register_reset_callbacks([lambda: _raise_first_of(losses)])
    early, late = hvd.add_process_set([0]), hvd.ProcessSet([1])

    @hvd.elastic.run
    def train(state: Any) -> None:
        if state.step == 0:
            state.step = 1
            state.commit()
            hvd.add_process_set(late)
            raise hvd.elastic.HostsUpdatedInterrupt
        with pytest.raises(HorovodInternalError, match="expected"):
            fail(state)
        assert not losses and (early.process_set_id, late.process_set_id) == (1, None)
        with pytest.raises(HorovodInternalError, match="not usable"):
            use_a_set(state)
        hvd.barrier()
        if rank == 1:
            raise LookupError("I am gone")
        hvd.allreduce(torch.ones(2))

    @hvd.elastic.run
    def fail(state: Any) -> None:
        hvd.allreduce(torch.ones(2 + rank), name="fail")

    @hvd.elastic.run
    def use_a_set(state: Any) -> None:
        hvd.allreduce(torch.ones(2), process_set=late)

    try:
        train(state)
    except (LookupError, HorovodInternalError) as error:
        said.append(str(error))
    hvd.shutdown()
    return said


def test_a_rank_that_never_comes_back_is_an_error(addresses: list[str], job: str) -> None:
    with (
        start_ranks(1, _leave, 0, addresses, job) as zero,
        start_ranks(1, _leave, 1, addresses, job) as one,
    ):
        waited, left = values_of([ranks.collect_one(0, 90) for ranks in (zero, one)])
    assert "fixed set of workers: have the launcher start a lost rank again" in waited[0]
    assert left == ["I am gone"]
