"""When memory belongs to the caller again, and what a forked child may do."""

from __future__ import annotations

import contextlib
import os

import numpy as np

import reducer_client
from tests.support.ranks import Tell, start_ranks
from tests.support.wait import wait_until


def _expire(rank: int, world: int, addresses: list[str], tell: Tell) -> str:
    """Rank 0 submits with a callback and gives up; rank 1 submits later."""
    group = reducer_client.connect(
        addresses, job="expire", rank=rank, world_size=world, step_timeout=1.0
    )
    ones, out = np.ones(3), np.zeros(3)
    tell("joined")
    tell.hear()
    if rank == 1:
        # The reducer has rank 0's contribution: the sum may come before rank 0 counts as lost.
        with contextlib.suppress(reducer_client.PeerLostError):
            assert (group.all_reduce(ones, key="late").wait(30) == 2).all()
        group.close()
        return "late"
    called: list[reducer_client.Work[np.ndarray]] = []
    work = group.all_reduce(ones, key="late", out=out, on_done=called.append)
    wait_until(lambda: bool(called), 10, "the callback of a work that is late")
    assert work.done
    out[:] = 7  # the array belongs to the caller again
    tell("expired")
    tell.hear()
    assert (out == 7).all()
    assert isinstance(work.exception(), reducer_client.RoundTimeoutError)
    group.close()
    return "expired"


def test_an_expired_work_never_touches_its_out_again(addresses: list[str]) -> None:
    with start_ranks(2, _expire, addresses, talk=True) as ranks:
        assert [ranks.receive(rank) for rank in range(2)] == ["joined"] * 2
        ranks.send(0)
        assert ranks.receive(0) == "expired"
        ranks.send(1)
        assert ranks.collect_one(1).value == "late"
        ranks.send(0)
        outcome = ranks.collect_one(0)
        assert outcome.value == "expired", outcome.trace


def test_a_forked_child_gets_named_errors_from_works_too(addresses: list[str]) -> None:
    with reducer_client.connect(addresses, job="fork", rank=0, world_size=1) as group:
        work = group.all_reduce(np.ones(3))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                work.wait(1)
            except reducer_client.ClosedError:
                os.write(writer, f"closed {group.run_id}".encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        assert os.read(reader, 100).decode() == f"closed {group.run_id}"
        os.close(reader)
        assert (work.wait() == 1).all()
