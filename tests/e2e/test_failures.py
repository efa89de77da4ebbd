"""Bad peers, dead peers and dead reducers: every rank gets an error that names them, no hang."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from reducer.core.limits.budget import SHARES_BESIDE_RANKS, share_of
from reducer_client import (
    ClosedError,
    Group,
    JoinError,
    MismatchError,
    PeerLostError,
    QuotaExceededError,
    ReducerError,
    ReducerUnavailableError,
    RoundTimeoutError,
)
from tests.support.cluster import Daemon
from tests.support.groups import Groups
from tests.support.keys import SAME_ID
from tests.support.ranks import Outcome, Tell, join, run_ranks, start_ranks
from tests.support.wait import LOST_SECONDS, wait_until

# The memory that 4 workers need of a lane: two default chunks each, one of them for the grant.
NEEDED = (4 + SHARES_BESIDE_RANKS) * share_of(2 * (256 << 10))


def _errors(outcomes: list[Outcome], kind: type[Exception]) -> list[Any]:
    for outcome in outcomes:
        assert isinstance(outcome.error, kind), f"rank {outcome.rank}: {outcome}"
    return [outcome.error for outcome in outcomes]


def _mismatch(rank: int, world: int, addresses: list[str], job: str) -> list[str]:
    texts = []
    last = rank == world - 1
    with join(rank, world, addresses, job) as group:
        for case, submit in (
            ("dtype", lambda: group.all_reduce(np.ones(9, "f8" if last else "f4"), key="dtype")),
            ("shape", lambda: group.all_reduce(np.ones(300_000 + last, "f4"), key="shape")),
            ("op", lambda: group.all_reduce(np.ones(9), op="max" if last else "sum", key="op")),
            ("root", lambda: group.broadcast(np.ones(9), root=int(last), key="root")),
        ):
            with pytest.raises(MismatchError) as caught:
                submit().wait(30)
            assert caught.value.key == case
            texts.append(str(caught.value))
            assert group.all_reduce(np.ones(3), key=case).wait(30).tolist() == [world] * 3
    return texts


def test_a_mismatch_is_the_same_error_on_every_rank_and_harms_nothing(
    addresses: list[str], job: str
) -> None:
    first, *others = run_ranks(3, _mismatch, addresses, job)
    assert all(texts == first for texts in others)
    assert "float32" in first[0] and "float64" in first[0]
    assert "300000" in first[1] and "300001" in first[1]
    assert "sum" in first[2] and "max" in first[2]


def _connect(rank: int, world: int, addresses: list[str], job: str, options: Any) -> None:
    join(
        addresses=addresses, job=job, **{"rank": rank, "world_size": world} | options[rank]
    ).close()


def _connect_all(addresses: list[str], job: str, options: list[dict[str, Any]]) -> list[Outcome]:
    with start_ranks(len(options), _connect, addresses, job, options) as ranks:
        return ranks.collect(60)


def test_a_rank_that_comes_twice_is_refused(addresses: list[str], job: str) -> None:
    short: dict[str, Any] = {"connect_timeout": 4}
    outcomes = _connect_all(addresses, job, [short, short | {"rank": 0, "run_id": ""}, short])
    refused = [o.error for o in outcomes[:2] if isinstance(o.error, JoinError)]
    assert any("rank 0" in str(error) for error in refused), outcomes


def test_a_wrong_world_size_is_refused(addresses: list[str], job: str) -> None:
    short: dict[str, Any] = {"connect_timeout": 4}
    outcomes = _connect_all(addresses, job, [short, short | {"world_size": 3}])
    errors = _errors(outcomes, JoinError)
    assert any("2" in str(e) and "3" in str(e) for e in errors), errors


def test_a_peer_that_does_not_come_is_named(addresses: list[str], job: str) -> None:
    started = time.monotonic()
    with pytest.raises(ReducerError, match=r"\b1\b") as caught:
        join(0, 3, addresses, job, connect_timeout=2)
    assert isinstance(caught.value, JoinError)
    assert "2" in str(caught.value)
    assert time.monotonic() - started < 8


def _come_after_the_silence_limit(
    rank: int, world: int, addresses: list[str], job: str, tell: Tell
) -> None:
    tell("started")
    if rank == 1:
        tell.hear()
    with join(rank, world, addresses, job, silence=1) as group:
        group.barrier()


def test_a_job_without_room_is_refused_with_what_to_try(job: str) -> None:
    with Daemon("--memory", "1MiB") as daemon:
        outcomes = _connect_all([daemon.address], job, [{}] * 4)
    for error in _errors(outcomes, QuotaExceededError):
        assert re.search(
            rf"needs {NEEDED:,} bytes .*4 workers.* 1,048,576 of 1,048,576 are free: "
            r"raise --memory, start more reducers, or use smaller chunks",
            str(error),
        ), error


def test_a_job_beyond_its_share_of_the_memory_is_refused_alone(job: str) -> None:
    with Daemon("--memory", "64MiB", "--job-memory", "6MiB", lanes=2) as daemon:
        outcomes = _connect_all([daemon.address], job, [{}] * 4)
        for error in _errors(outcomes, QuotaExceededError):
            assert re.search(
                rf"needs {NEEDED:,} bytes .*3,145,728 of the 3,145,728 that one job may have are "
                r"left: raise --job-memory, or use smaller chunks",
                str(error),
            ), error
        with join(0, 1, [daemon.address], job + "-small") as group:
            assert group.all_reduce(np.ones(3)).wait().tolist() == [1, 1, 1]


def test_waiting_for_peers_is_no_silence(addresses: list[str], job: str) -> None:
    with start_ranks(2, _come_after_the_silence_limit, addresses, job, talk=True) as ranks:
        for rank in range(2):
            assert ranks.receive(rank) == "started"
        started = time.monotonic()
        wait_until(lambda: time.monotonic() - started > 2.5, 5)
        ranks.send(1)
        outcomes = ranks.collect(30)
    assert [o.error for o in outcomes] == [None, None], outcomes


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_reducer_under_two_names_is_named(addresses: list[str], job: str, transport: str) -> None:
    twice = [addresses[0], addresses[0].replace("127.0.0.1", "localhost")]
    for attempt in range(5):
        with pytest.raises(JoinError) as caught:
            join(0, 2, twice, f"{job}-{attempt}", transport=transport)
        assert f"addresses {twice[0]} and {twice[1]} are the same reducer" in str(caught.value)


def test_no_reducer_at_the_address_is_an_error_that_names_it(job: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ReducerUnavailableError, match=address):
            join(0, 1, [address], job, connect_timeout=1.5)
        assert time.monotonic() - started < 10  # the default is a minute


def _wait_for_rank_1(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> None:
    with join(rank, world, addresses, job) as group:
        group.barrier()
        tell("joined")
        if rank == 1:
            tell.hear()
            return
        group.all_reduce(np.ones(1 << 20), key="grad").wait(60)


def _sum_after_a_word(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> None:
    with join(rank, world, addresses, job, worker_silence=1 if rank == 0 else 60) as group:
        group.barrier()
        tell("joined")
        tell.hear()
        group.all_reduce(np.ones(1 << 20), key="grad").wait(60)


def test_a_worker_that_was_stopped_for_too_long_says_so(addresses: list[str], job: str) -> None:
    """Rank 0's `worker_silence` applies to both ranks."""
    with start_ranks(2, _sum_after_a_word, addresses, job, talk=True) as ranks:
        for rank in range(2):
            assert ranks.receive(rank) == "joined"
        ranks.kill(1, signal.SIGSTOP)
        ranks.send(0)
        other = ranks.collect_one(0)
        ranks.kill(1, signal.SIGCONT)
        ranks.send(1)
        stopped = ranks.collect_one(1)
    (error,) = _errors([other], PeerLostError)
    assert (error.rank, error.reason) == (1, "lost")
    assert re.search(r"rank 1 of job .* is lost: it sent nothing for [1-4]\.\d s", str(error))
    (error,) = _errors([stopped], PeerLostError)
    assert error.rank == 1
    assert re.search(r"this process itself, stood still for \d+\.\d s", str(error))
    assert "lost after 1.0 s without a byte" in str(error)


def test_sys_exit_in_a_block_leaves_as_its_end_does(addresses: list[str], job: str) -> None:
    """Any other exception aborts, since the rank will not contribute what it still owes."""
    for error, reason in ((SystemExit, "left"), (KeyError, "lost")):
        with Groups(2, addresses, f"{job}-{reason}") as groups:
            with pytest.raises(error), groups.ranks[1]:
                raise error
            with pytest.raises(PeerLostError) as caught:
                groups.ranks[0].all_reduce(np.ones(3)).wait(30)
        assert (caught.value.rank, caught.value.reason) == (1, reason)


def test_a_killed_worker_is_named_to_every_survivor(addresses: list[str], job: str) -> None:
    with start_ranks(4, _wait_for_rank_1, addresses, job, talk=True) as ranks:
        for rank in range(4):
            assert ranks.receive(rank) == "joined"
        killed = time.monotonic()
        ranks.kill(1)
        outcomes = ranks.collect(30)
        took = time.monotonic() - killed
    del outcomes[1]
    for error in _errors(outcomes, PeerLostError):
        assert (error.rank, error.key, error.round) == (1, "grad", 0)
        assert error.reason == "lost"
        # The dead worker's kernel sends RST if bytes were unread, else FIN. The lane may be the one
        # that sends next.
        end = r"(the worker closed the connection|.*\[Errno (104|32)\])"
        assert re.search(f"rank 1 of job {job!r} is lost: {end}", str(error)), error
    assert took < LOST_SECONDS


def test_a_worker_that_leaves_early_is_named(addresses: list[str], job: str) -> None:
    with start_ranks(3, _wait_for_rank_1, addresses, job, talk=True) as ranks:
        for rank in range(3):
            assert ranks.receive(rank) == "joined"
        ranks.send(1)
        outcomes = ranks.collect(40)
    assert outcomes[1].error is None
    for error in _errors([outcomes[0], outcomes[2]], PeerLostError):
        assert (error.rank, error.reason) == (1, "left")


def _raise_in_block(rank: int, world: int, addresses: list[str], job: str) -> float:
    started = time.monotonic()
    expected = ZeroDivisionError if rank == 1 else PeerLostError
    with pytest.raises(expected) as caught, join(rank, world, addresses, job) as group:
        group.barrier()
        if rank == 1:
            raise ZeroDivisionError
        started = time.monotonic()
        group.all_reduce(np.ones(3)).wait(30)
    if rank != 1:
        assert caught.value.rank == 1
        assert caught.value.reason != "left"
    return time.monotonic() - started


def test_a_block_left_by_an_exception_is_no_clean_leave(addresses: list[str], job: str) -> None:
    assert max(run_ranks(3, _raise_in_block, addresses, job)) < 8


def _come_late(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> None:
    with join(rank, world, addresses, job) as group:
        if rank == 1:
            tell.hear()
        work = group.all_reduce(np.full(4, rank), key="late")
        if rank == 0:
            with pytest.raises(RoundTimeoutError, match=r"'late', round 0.*0\.3 s") as caught:
                work.wait(0.3)
            assert isinstance(caught.value, TimeoutError)
            assert not work.done
            tell("timed out")
        assert work.wait(30).tolist() == [1] * 4
        assert work.done and work.exception() is None


def test_after_a_timeout_the_same_work_can_be_waited_for_again(
    addresses: list[str], job: str
) -> None:
    with start_ranks(2, _come_late, addresses, job, talk=True) as ranks:
        assert ranks.receive(0) == "timed out"
        ranks.send(1)
        outcomes = ranks.collect(30)
    assert [o.error for o in outcomes] == [None, None], outcomes


def _interrupted(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> float:
    if rank == 1:
        with join(rank, world, addresses, job):
            tell.hear()
        return 0.0
    interrupted = 0.0
    with suppress(KeyboardInterrupt), join(rank, world, addresses, job) as group:
        work = group.all_reduce(np.ones(3))
        try:
            tell("waiting")
            work.wait(60)
        except KeyboardInterrupt:
            interrupted = time.monotonic()  # all processes share this clock
            raise
    return interrupted


def test_ctrl_c_ends_a_wait(addresses: list[str], job: str) -> None:
    with start_ranks(2, _interrupted, addresses, job, talk=True) as ranks:
        assert ranks.receive(0) == "waiting"
        sent = time.monotonic()
        ranks.kill(0, signal.SIGINT)
        outcome = ranks.collect_one(0, 20)
    assert outcome.error is None, outcome
    assert 0 < outcome.value - sent < 10  # the timeout is a minute


def test_keys_with_one_id_are_a_mismatch_that_names_both(solo: Group) -> None:
    first, second = SAME_ID
    work = solo.all_reduce(np.ones(3), key=first)
    with pytest.raises(MismatchError, match="rename one of them") as caught:
        solo.all_reduce(np.ones(3), key=second)
    assert first in str(caught.value) and second in str(caught.value)
    assert caught.value.key == second
    assert work.wait(10).tolist() == [1, 1, 1]


def test_a_closed_group_says_so(addresses: list[str], job: str) -> None:
    group = join(0, 1, addresses, job)
    group.all_reduce(np.ones(3)).wait(10)
    group.close()
    group.close()
    with pytest.raises(ClosedError):
        group.all_reduce(np.ones(3))


def test_a_forked_child_never_touches_the_group(solo: Group) -> None:
    solo.all_reduce(np.ones(3)).wait(10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            solo.all_reduce(np.ones(3))
        except ClosedError as error:
            os.write(write, str(error).encode())
        finally:
            solo.close()
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        assert "fork" in answer.read()
    assert os.waitpid(child, 0)[1] == 0
    assert solo.all_reduce(np.ones(3)).wait(10).tolist() == [1, 1, 1]
