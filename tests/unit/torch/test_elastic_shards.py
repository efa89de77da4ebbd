"""Dealing samples to ranks that come and go: each counts once an epoch, and all deal alike."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.support.frameworks import needs_extra

pytestmark = needs_extra("torch")


def make(rank: int = 0, size: int = 103, batch: int = 8, seed: int = 5) -> tuple[Any, list[int]]:
    """The shards of a rank, and the counts that it announces."""
    from reducer_client.torch.elastic.shards import Shards

    announced: list[int] = []
    return Shards(size, batch, seed, lambda: rank, announced.append), announced


@pytest.mark.parametrize("seed", range(20))
def test_each_sample_counts_once_whoever_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    ranks = list(range(5))
    all_ = [make(rank)[0] for rank in ranks]
    for shards in all_:
        shards.deal_to(ranks)
    for epoch in range(3):
        done: Counter[int] = Counter()
        iterators = [iter(shards) for shards in all_]
        while all_[ranks[0]].epoch == epoch:
            dealt = {rank: next(iterators[rank]) for rank in ranks}
            if len(ranks) > 1 and rng.random() < 0.1:
                ranks.remove(rng.choice(ranks))
            for rank in ranks:
                done.update(dealt[rank])
                all_[rank].end_step(ranks)
            assert len({str(all_[rank].state_dict()) for rank in ranks}) == 1
        assert done == Counter(range(103)), f"epoch {epoch}"


def test_the_last_samples_are_dealt_evenly_and_announced() -> None:
    shards, announced = make(rank=2, size=11, batch=4)
    shards.deal_to([0, 2])
    for _ in shards:
        shards.end_step([0, 2])
    assert announced == [4, 1] and shards.epoch == 1
    shards.deal_to([0, 1, 2])
    shards, announced = make(rank=2, size=2)
    shards.deal_to([0, 1, 2])
    assert next(iter(shards)) == [] and announced == [0]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(shards: Any) -> list[int]:
        samples = []
        for indices in shards:
            samples += indices
            shards.end_step([0])
        return samples

    shards, _ = make()
    first, second = order(shards), order(shards)
    other = order(make(seed=6)[0])
    assert len({str(first), str(second), str(other)}) == 3
    assert sorted(first) == sorted(second) == sorted(other) == list(range(103))
    assert first[:5] == [88, 31, 48, 29, 7], "workers with other releases have another order"


def test_a_state_goes_on_in_the_middle_of_an_epoch() -> None:
    shards, _ = make()
    shards.deal_to([0, 1])
    steps = iter(shards)
    next(steps)
    shards.end_step([0])  # rank 1 is lost
    late, _ = make(rank=1)
    late.load_state_dict(shards.state_dict())
    for each in (shards, late):
        each.deal_to([0, 1])
    own, other = next(steps), next(iter(late))
    assert len(own) == len(other) == 8 and not set(own) & set(other)
    with pytest.raises(ValueError, match="batch=4, but the job has batch=8"):
        make(batch=4)[0].load_state_dict(shards.state_dict())


def test_samples_are_asked_for_once_a_step() -> None:
    shards, _ = make()
    steps = iter(shards)
    next(steps)
    with pytest.raises(RuntimeError, match=r"call Elastic.step\(\) once"):
        next(steps)
    with pytest.raises(ValueError, match="0 samples in batches of 4"):
        make(size=0, batch=4)
