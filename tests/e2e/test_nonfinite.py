"""NaN and Inf over real sockets: the named rank and the error, also after a reducer's death."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from reducer_client import NumericError
from tests.support.cluster import Daemon
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.reducers import Reducers

COUNT = 100_003
BAD_AT = 70_001


def _gradient(is_bad: bool, value: float = np.nan) -> np.ndarray:
    array = np.ones(COUNT, np.float32)
    array[BAD_AT] = value if is_bad else 1
    return array


def _propagates(rank: int, world: int, addresses: list[str], job: str) -> dict[str, Any]:
    with join(rank, world, addresses, job) as group:
        work = group.all_reduce(_gradient(rank in (1, 2), np.inf), key="w")
        result = work.wait(30)
        assert np.isinf(result[BAD_AT]) and np.isfinite(np.delete(result, BAD_AT)).all()
        assert work.nonfinite and work.nonfinite_rank == 1 and not work.nan
        clean = group.all_reduce(_gradient(False), key="w")
        clean.wait(30)
        assert not clean.nonfinite and clean.nonfinite_rank is None
        many = group.all_reduce_many([np.ones(3), np.full(3, np.nan if rank == 2 else 1.0)])
        many.wait(30)
        assert many.nonfinite_rank == 2 and many.nan
        return {"rounds": group.stats()["nonfinite_rounds"]}


def test_infinities_pass_and_are_blamed(addresses: list[str], job: str) -> None:
    assert run_ranks(3, _propagates, addresses, job) == [{"rounds": 2}] * 3


def _raises(rank: int, world: int, addresses: list[str], job: str) -> tuple[str, str]:
    texts = []
    with join(rank, world, addresses, job, on_nonfinite="error") as group:
        for key, mine in (
            ("layer1.weight", _gradient(rank > 0)),
            ("sum", np.full(3, 3e38, np.float32)),
        ):
            work = group.all_reduce(mine, key=key)
            with pytest.raises(NumericError) as caught:
                work.wait(30)
            assert caught.value.reason == "nonfinite" and caught.value.key == key
            assert caught.value.rank == work.nonfinite_rank
            texts.append(str(caught.value))
        assert group.all_reduce(np.ones(3, np.float32)).wait(30).tolist() == [world] * 3
    return texts[0], texts[1]


def test_the_error_is_the_same_on_every_rank(addresses: list[str], job: str) -> None:
    said = run_ranks(3, _raises, addresses, job)
    assert set(said) == {said[0]}
    blame, growth = said[0]
    assert re.match(
        r"rank 1 contributed NaN or Inf to 'layer1.weight' in round 0 \(first at chunk \d+\)", blame
    )
    assert growth.startswith("the result of 'sum' in round 0 is not finite, though all")


def _waits_with_nan(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> Any:
    with join(rank, world, addresses, job) as group:
        if rank == 0:  # so that the lane parks the other contributions
            tell.hear()
        work = group.all_reduce(_gradient(rank > 0), key="w")
        tell("submitted")
        work.wait(60)
        return work.nonfinite_rank, work.nan


def test_the_same_rank_is_named_after_a_reducers_death(job: str) -> None:
    with Reducers(2) as reducers:
        ranks = start_ranks(3, _waits_with_nan, reducers.addresses, job, talk=True)
        with ranks:
            assert [ranks.receive(rank) for rank in (1, 2)] == ["submitted"] * 2
            reducers.kill(1)
            ranks.send(0)
            outcomes = ranks.collect()
    assert [outcome.value for outcome in outcomes] == [(1, True)] * 3


def _stays(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> None:
    with join(rank, world, addresses, job) as group:
        for turn in range(3):
            group.all_reduce(_gradient(rank == min(turn, 1)), key="w").wait(30)
        tell("reduced")
        tell.hear()


def test_the_daemon_counts_whom_it_blames(job: str) -> None:
    with Daemon(lanes=1) as daemon:
        ranks = start_ranks(2, _stays, [f"127.0.0.1:{daemon.port}"], job, talk=True)
        with ranks:
            assert [ranks.receive(rank) for rank in range(2)] == ["reduced"] * 2
            _, body = daemon.get("/metrics")
            for rank in range(2):
                ranks.send(rank)
            assert all(outcome.error is None for outcome in ranks.collect())
    counted = dict(re.findall(r"reducer_nonfinite_contributions_total\{(.*?)\} (\S+)", body))
    assert counted == {
        f'job_name="{job}",lane="0",rank="0"': "1.0",
        f'job_name="{job}",lane="0",rank="1"': "2.0",
    }
