"""Hosted reducers on one machine: ranks without any reducer configured."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer_client import (
    AuthenticationError,
    JoinError,
    PeerLostError,
    ReducerUnavailableError,
    config,
)
from reducer_client.config import hosting as hosting_config
from reducer_client.hosted import hosted_reducer
from reducer_client.hosted.hosted_reducer import HostedReducer
from reducer_client.hosted.reach import find_unreachable
from reducer_client.hosted.reducers import Reducers
from reducer_client.joining import join
from reducer_client.trust import Trust
from tests.support.certs import Files
from tests.support.cluster import Daemon
from tests.support.ports import free_ports
from tests.support.ranks import Tell, run_ranks, start_ranks
from tests.support.wait import wait_until


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the ranks meet; nothing else is configured."""
    for variable in ("REDUCER_ADDRS", "REDUCER_JOB", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    monkeypatch.setenv("REDUCER_MEETING", place)
    return place


def _sum(rank: int, world: int) -> tuple[list[float], tuple[str, ...], int | None]:
    with reducer_client.connect(rank=rank, world_size=world) as group:
        own = group.reducers_in_use.own
        total = group.all_reduce(np.arange(3.0)).wait(30)
        return total.tolist(), group.settings.addresses, None if own is None else own.pid


def test_a_program_without_reducers_runs_on_its_own(meeting: str) -> None:
    results = run_ranks(3, _sum)
    assert [total for total, _, _ in results] == [[0.0, 3.0, 6.0]] * 3
    assert len({addresses for _, addresses, _ in results}) == 1
    assert len(results[0][1]) == 1
    pids = [pid for _, _, pid in results]
    assert pids[1:] == [None, None]
    assert not _runs(pids[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(meeting[10:])), 1)


def _with_key(rank: int, world: int, path: str) -> list[float]:
    with reducer_client.connect(rank=rank, world_size=world, job="j", key_file=path) as group:
        return group.all_reduce(np.ones(2)).wait(30).tolist()


@pytest.mark.parametrize("of_job", [False, True])
def test_the_key_of_the_job_guards_meeting_and_reducers(
    meeting: str, tmp_path: Any, of_job: bool
) -> None:
    from reducer import keyfile

    keyfile.make(str(tmp_path / "master"))
    keyfile.make_for_job(str(tmp_path / "of-job"), "j", str(tmp_path / "master"))
    path = str(tmp_path / ("of-job" if of_job else "master"))
    assert run_ranks(2, _with_key, path) == [[2.0, 2.0]] * 2


def _hold(rank: int, world: int, tell: Tell) -> str:
    group = reducer_client.connect(rank=rank, world_size=world)
    own = group.reducers_in_use.own
    group.all_reduce(np.ones(10)).wait(30)
    tell((group.settings.addresses[0], own and own.pid, os.getpid()))
    tell.hear()
    try:
        group.all_reduce(np.ones(10)).wait(30)
    except PeerLostError as error:
        return f"lost {error.rank}"
    finally:
        group.close()
    return "summed"


def test_a_stranger_without_the_key_cannot_join(meeting: str) -> None:
    with start_ranks(2, _hold, talk=True) as ranks:
        address, _, _ = ranks.receive(0)
        ranks.receive(1)
        with pytest.raises(AuthenticationError):
            reducer_client.connect(address, job="training", rank=0, world_size=1, hosted=False)
        for rank in range(2):
            ranks.send(rank)
        assert [outcome.value for outcome in ranks.collect()] == ["summed"] * 2


def test_a_killed_hosted_reducer_starts_again_at_its_address(meeting: str) -> None:
    with start_ranks(2, _hold, talk=True) as ranks:
        address, pid, _ = ranks.receive(0)
        ranks.receive(1)
        os.kill(pid, 9)
        host, port = address.split(":")

        def serves() -> bool:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return not _runs(pid)
            return False

        wait_until(serves, 10.0)
        for rank in range(2):
            ranks.send(rank)
        assert [outcome.value for outcome in ranks.collect()] == ["summed"] * 2


def test_the_hosted_reducer_dies_with_its_worker(meeting: str) -> None:
    with start_ranks(2, _hold, talk=True) as ranks:
        _, pid, _ = ranks.receive(0)
        ranks.receive(1)
        ranks.kill(1)
        ranks.send(0)
        assert ranks.collect_one(0).value == "lost 1"
        assert not _runs(pid)
    with start_ranks(1, _hold, talk=True) as ranks:
        _, pid, _ = ranks.receive(0)
        ranks.kill(0)
        wait_until(lambda: not _runs(pid), 10.0)


def _stopped(rank: int, world: int) -> bool:
    group = reducer_client.connect(rank=rank, world_size=world)
    own = group.reducers_in_use.own
    assert own is not None
    pid = own.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    group.close(1.0)
    return _runs(pid)


def test_a_hosted_reducer_that_does_not_drain_is_killed(meeting: str) -> None:
    assert run_ranks(1, _stopped) == [False]


def _interrupted(rank: int, world: int, delays: list[float]) -> tuple[int, str]:
    """How many calls were interrupted, and the pids of the children that are left."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    for delay in delays:
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            group = reducer_client.connect(rank=rank, world_size=world)
            signal.setitimer(signal.ITIMER_REAL, 0)
            group.close()
        except KeyboardInterrupt:
            interrupted += 1
    tasks = Path("/proc/self/task").iterdir()
    return interrupted, " ".join((task / "children").read_text() for task in tasks).strip()


def test_an_interrupt_while_joining_leaves_no_reducer(meeting: str) -> None:
    ((interrupted, children),) = run_ranks(1, _interrupted, [0.1 * n for n in range(1, 9)])
    assert interrupted >= 3
    assert not children


def _job(rank: int, world: int, job: str) -> float:
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "REDUCER_JOB": job}
    os.environ.pop("REDUCER_MEETING")
    with reducer_client.connect(rank=rank, world_size=world) as group:
        return float(group.all_reduce(np.full(1, len(job))).wait(30)[0])


def test_two_jobs_that_start_at_once_do_not_meet(meeting: str) -> None:
    with start_ranks(2, _job, "a") as one, start_ranks(2, _job, "bbb") as other:
        assert [outcome.value for outcome in one.collect()] == [2.0] * 2
        assert [outcome.value for outcome in other.collect()] == [6.0] * 2


def test_a_port_that_another_job_takes_first_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The port was free when the client looked, and is in use when the reducer listens."""
    monkeypatch.setattr(hosted_reducer, "free_port", lambda host, first, last: first)
    environment = hosting_config.hosted_environment()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own = HostedReducer("127.0.0.1", (port, port + 9), bytes(32), ["--lanes", "1"], environment)
        try:
            assert port < int(own.start().rpartition(":")[2]) <= port + 9
        finally:
            own.stop()


def test_a_reducer_takes_the_port_of_the_one_that_it_replaces_as_soon_as_it_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment = hosting_config.hosted_environment()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address = f"127.0.0.1:{port}"
        own = HostedReducer(
            "127.0.0.1", (port, port), bytes(32), ["--lanes", "1"], environment, address
        )
        assert own.start() == address
        wait_until(lambda: "Another process has this port" in caplog.text, 30)
    try:
        wait_until(lambda: not find_unreachable([address], 1.0), 30)
    finally:
        own.stop()


def _impatient(rank: int, world: int) -> list[float]:
    with reducer_client.connect(rank=rank, world_size=world, step_timeout=0.3) as group:
        return group.all_reduce(np.ones(1)).wait(30).tolist()


def test_the_meeting_does_not_have_the_timeout_of_a_step(meeting: str) -> None:
    assert run_ranks(2, _impatient) == [[2.0]] * 2


def _fork(rank: int, world: int) -> bool:
    group = reducer_client.connect(rank=rank, world_size=world)
    child = os.fork()
    if child == 0:
        group.close()
        os._exit(0)
    os.waitpid(child, 0)
    own = group.reducers_in_use.own
    assert own is not None
    group.all_reduce(np.ones(10)).wait(30)
    alive = _runs(own.pid)
    group.close()
    return alive


def test_a_forked_child_does_not_end_the_reducer(meeting: str) -> None:
    assert run_ranks(1, _fork) == [True]


def test_a_port_in_use_is_named(meeting: str) -> None:
    host, port = meeting.split(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(ReducerUnavailableError, match=f"cannot listen on {meeting}"),
    ):
        reducer_client.connect(rank=0, world_size=1)


def _unlike(rank: int, world: int, store: str) -> str:
    from tests.support.process_group import process_group

    listed = ["127.0.0.1:1"] if rank else ["127.0.0.1:1", "127.0.0.1:2"]
    with pytest.raises(JoinError) as caught, process_group(rank, world, listed, store):
        pass
    return str(caught.value)


def test_ranks_that_know_different_reducers_are_named(meeting: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for text in run_ranks(3, _unlike, str(tmp_path / "store")):
        assert "rank 1 has 1 dedicated reducers, rank 0 has 2: give all ranks the same" in text


@pytest.mark.parametrize("mode", ["tls", "psk", "open"])
def test_dedicated_reducers_keep_their_own_mode(certs: Files, key_file: str, mode: str) -> None:
    """The engine joins a dedicated reducer in its mode, and a hosted one by the hosted key."""
    options = {
        "tls": [*certs.flags],
        "psk": ["--key-file", key_file],
        "open": [],
    }[mode]
    hosting = hosting_config.resolve_hosting(environ={})
    own = HostedReducer("127.0.0.1", (0, 0), bytes(32), ["--lanes", "1"], hosting.environment)
    with Daemon(*options) as daemon:
        trust = Trust(
            config.resolve_key("j", None, key_file) if mode == "psk" else b"",
            (certs.cert, certs.key, certs.ca) if mode == "tls" else None,
        )
        reducers = Reducers((daemon.address, own.start()), (1, 3), ((0,),), bytes(32), own)
        settings = config.resolve(
            config.Given(
                addresses=reducers.addresses, job="j", rank=0, world_size=1,
                weights=reducers.weights,
            )
        )  # fmt: skip
        with join(settings, trust, reducers) as group:
            ones = np.ones(1 << 20, np.float32)
            assert np.array_equal(group.all_reduce(ones).wait(30), ones)
            took = [lane["contributions"] for lane in group.stats()["reducers"]]
            assert all(took)


def _stays_away(rank: int, world: int, address: str) -> str:
    os.environ |= {"LOCAL_WORLD_SIZE": "1"}
    with pytest.raises(JoinError) as caught:
        reducer_client.connect(
            address, job="j", rank=rank, world_size=world, connect_timeout=3, hosted=rank != 1
        )
    return str(caught.value)


def test_a_rank_that_does_not_meet_does_not_take_the_meeting_for_the_job(meeting: str) -> None:
    with Daemon() as daemon:
        meets, stays_away, _ = run_ranks(3, _stays_away, daemon.address)
    assert "REDUCER_HOSTED must be equal on all ranks): rank 1 of 3 has not joined" in meets
    assert "ranks 0, 2 of 3 have not joined job 'j' within 3 s" in stays_away


def _without_address(rank: int, world: int) -> str:
    if rank == 1:
        os.environ["REDUCER_SOCKET_IFNAME"] = "nope0"
    with pytest.raises(JoinError) as caught:
        reducer_client.connect(rank=rank, world_size=world)
    return str(caught.value)


def test_a_wrong_interface_is_named_on_every_rank(meeting: str) -> None:
    for text in run_ranks(2, _without_address):
        assert text == "rank 1: REDUCER_SOCKET_IFNAME='nope0': this interface has no address"


def _with_horovod(rank: int, world: int) -> list[list[float]]:
    import reducer_client.horovod as hvd
    from reducer_client.horovod.arrays import allreduce

    names = {"RANK": rank, "SIZE": world, "LOCAL_RANK": rank, "LOCAL_SIZE": world}
    os.environ |= {f"HOROVOD_{name}": str(number) for name, number in names.items()}
    sums = []
    for _ in range(2):
        hvd.init()
        sums.append(allreduce(np.ones(2), op=hvd.Sum).tolist())
        both = hvd.add_process_set(hvd.ProcessSet([0, 1]))
        if both.included():
            sums.append(allreduce(np.ones(1), op=hvd.Sum, process_set=both).tolist())
        hvd.shutdown()
    return sums


def test_horovods_api_needs_no_reducers_either(meeting: str) -> None:
    first, _, last = run_ranks(3, _with_horovod)
    assert first == [[3.0, 3.0], [2.0]] * 2
    assert last == [[3.0, 3.0]] * 2


def test_hosted_false_asks_for_addresses(meeting: str) -> None:
    with pytest.raises(ValueError, match="no reducer addresses"):
        reducer_client.connect(rank=0, world_size=1, hosted=False)


def test_an_error_while_joining_ends_the_hosted_reducer(
    meeting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reducer_client import joining

    started: list[int] = []
    real = joining.form

    def form(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        started.append(found.own.pid)
        return found

    monkeypatch.setattr(joining, "form", form)
    with pytest.raises(ValueError, match="min_reducers=3"):
        reducer_client.connect(rank=0, world_size=1, min_reducers=3)
    assert started and not _runs(started[0])


def _runs(pid: int | None) -> bool:
    assert pid is not None
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
