"""Digests over real sockets find results that differ between ranks with right CRCs."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.wire.codes import MessageKind
from reducer.wire.keys import key_id
from reducer_client import IntegrityError
from tests.e2e.test_failover import Training
from tests.support.liar import Liar
from tests.support.ranks import join, run_ranks
from tests.support.reducers import Reducers

COUNT = 100_003
WORLD = 3


def _train(
    rank: int, world: int, addresses: list[list[str]], job: str, every: int, turns: int
) -> str:
    """All-reduce until an error; returns its text, or "" if there was none."""
    with join(rank, world, addresses[rank], job, digest_every=every, transport="tcp") as group:
        try:
            for turn in range(turns):
                values = np.full(COUNT, rank + turn, np.float32)
                works = [group.all_reduce(values.copy(), key=key) for key in ("w", "v")]
                for work in works:
                    work.wait(60)
                group.barrier()
        except IntegrityError as error:
            text = str(error).split("; key ")[0]  # any key may be named
            return f"{error.reason} of rank {error.rank}: {text}"
    return ""


def _lied_to(addresses: list[str], job: str, every: int) -> list[str]:
    wrong = key_id("w")
    about = (MessageKind.RESULT, wrong, 2, 0)
    with Liar(addresses[0], lambda h: (h.kind, h.key, h.round, h.chunk) == about) as liar:
        lists = [[liar.address if rank == 1 else addresses[0]] for rank in range(WORLD)]
        said: list[str] = run_ranks(WORLD, _train, lists, job, every, 8)
        assert liar.lies == 1
    return said


@pytest.mark.parametrize(("every", "rounds"), [(1, "round 2"), (4, "rounds 0 to 3")])
def test_every_rank_names_the_one_that_was_lied_to(
    addresses: list[str], job: str, every: int, rounds: str
) -> None:
    said = _lied_to(addresses, job, every)
    assert set(said) == {said[0]}
    assert said[0].startswith(
        f"digest of rank 1: the results of 'w' in {rounds} differ between the ranks: "
        "ranks 0, 2 have one result, rank 1 has another; "
    )


def test_without_digests_nobody_notices(addresses: list[str], job: str) -> None:
    assert _lied_to(addresses, job, 0) == [""] * WORLD


def test_digests_agree_while_a_reducer_dies(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDUCER_DIGEST_EVERY", "2")
    with Reducers(2) as reducers:
        training = Training(reducers, job, WORLD)
        with training.ranks:
            training.turn(3)
            reducers.kill(1)
            training.turn(4)
            training.finish()
