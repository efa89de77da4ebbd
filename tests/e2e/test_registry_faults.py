"""The registry of a reducer when processes die, disks fill, answers are lost and strangers call."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reducer import keyfile
from reducer.wire.codes import MessageKind
from reducer.wire.handshake import job_key
from reducer.wire.header import PrefaceFlag, pack_preface
from reducer.wire.messages import RegistryCall
from reducer_client.errors import (
    AuthenticationError,
    ClosedError,
    ProtocolError,
    ReducerUnavailableError,
)
from reducer_client.registry.daemon import DaemonRegistry
from tests.support import harms
from tests.support.certs import Authority, Files
from tests.support.cluster import Daemon, run_cli
from tests.support.folders import folder_in_memory
from tests.support.frames import control
from tests.support.ports import free_port
from tests.support.proxy import Proxies
from tests.support.reducers import Reducers
from tests.support.wait import AT_ONCE, wait_until

TIMEOUT = 5.0


@contextmanager
def registry(address: str, job: str = "job", **more: Any) -> Iterator[DaemonRegistry]:
    found = DaemonRegistry(address, job, **{"timeout": TIMEOUT, **more})
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "registry")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One that all tests of this module may call and none may break."""
    with folder_in_memory() as folder:
        daemon = Daemon("--registry", str(folder / "registry"), lanes=2)
        yield daemon
        assert daemon.lane_total("internal_errors") == 0, daemon.log
        assert daemon.stop() == 0, daemon.log


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


# --- processes that die ---------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["daemon", "lane"])
def test_documents_outlive_a_kill_and_leases_come_back(file: str, whom: str) -> None:
    with Reducers(1, "--registry", file) as reducers, registry(reducers.addresses[0]) as one:
        before = one.cas("view", 0, b"first")[1]
        one.lease("view", "rank 0", b"here", 60.0)
        held = one.get("view")
        with registry(reducers.addresses[0]) as two:
            assert two.get("view") == held
            if whom == "daemon":
                reducers.kill(0)
                reducers.start(0)
            else:
                reducers.kill_lane(0, 0)
            wait_until(lambda: dict(two.get("view").leases) == {"rank 0": b"here"}, TIMEOUT)
            assert two.get("view") == held
            done, after = two.cas("view", before.version, b"second")
            assert done and one.get("view") == after


def test_each_change_that_was_confirmed_outlives_a_kill(file: str) -> None:
    """A writer writes on while the daemon is killed again and again."""
    with Reducers(1, "--registry", file) as reducers:
        confirmed: list[bytes] = []
        stop = threading.Event()

        def write() -> None:
            with registry(reducers.addresses[0], timeout=20.0) as one:
                record = one.get("view")
                while not stop.is_set():
                    value = b"%d" % (len(confirmed) + 1)
                    done, record = one.cas("view", record.version, value)
                    assert done and record.value == value, (record, value)
                    confirmed.append(value)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            for _ in range(2):
                count = len(confirmed)
                wait_until(lambda count=count: len(confirmed) > count + 20, TIMEOUT)
                reducers.kill(0)
                reducers.start(0)
            stop.set()
            writing.result(30)
        with registry(reducers.addresses[0]) as two:
            record = two.get("view")
            assert (record.version, record.value) == (len(confirmed), confirmed[-1])


def test_a_lost_file_is_another_incarnation(file: str) -> None:
    with Reducers(1, "--registry", file) as reducers, registry(reducers.addresses[0]) as one:
        one.cas("view", 0, b"first")
        seen = one.cas("view", 1, b"second")[1]
        reducers.kill(0)
        os.unlink(file)
        reducers.start(0)
        record = one.watch("view", seen, 20.0)
        assert record.incarnation != seen.incarnation
        assert (record.version, record.value) == (0, b"")
        done, record = one.cas("view", 2, b"third")
        assert not done and record.version == 0


def test_a_torn_file_stops_the_start(file: str) -> None:
    with Daemon("--registry", file) as daemon, registry(daemon.address) as one:
        one.cas("view", 0, bytes(1_000))
    data = Path(file).read_bytes()
    Path(file).write_bytes(data[:-1])
    ended = run_cli("serve", "--port", "0", "--metrics-port", "0", "--registry", file)
    assert ended.returncode == 2 and "is cut short" in ended.stderr, ended.stderr
    assert file in ended.stderr and Path(file).read_bytes() == data[:-1]


def test_a_full_disk_fails_the_call_and_keeps_the_document(file: str) -> None:
    with Daemon("--registry", file) as daemon, registry(daemon.address) as one:
        before = one.cas("view", 0, b"small")[1]
        pid, limit = daemon.lane_pid(0), resource.RLIMIT_FSIZE
        unlimited = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, (600, unlimited[1]))
        with pytest.raises(ReducerUnavailableError, match=r"could not write.*File too large") as e:
            one.cas("view", before.version, bytes(4_000))
        assert daemon.address in str(e.value)
        assert one.get("view") == before
        resource.prlimit(pid, limit, unlimited)
        done, after = one.cas("view", before.version, bytes(4_000))
        assert done and after.version == before.version + 1
        assert "could not write" in daemon.log


# --- the network ----------------------------------------------------------------------------------


def test_a_lost_answer_of_cas_is_no_failure(daemon: Daemon, name: str) -> None:
    trigger = harms.Trigger()
    with (
        Proxies([daemon.address], trigger, framed=True) as proxies,
        registry(proxies.addresses[0]) as one,
        registry(daemon.address) as rival,
    ):
        record = one.get(name)
        for number in range(10):
            trigger.arm("down", MessageKind.RECORD, harms.cut(0))
            done, record = one.cas(name, record.version, b"%d" % number)
            assert done and record.version == number + 1, record
        trigger.arm("down", MessageKind.RECORD, harms.cut(0))
        done, after = one.cas(name, record.version - 1, b"late")
        assert not done and after == record == rival.get(name)


def test_a_lost_answer_is_recognized_after_later_changes(daemon: Daemon, name: str) -> None:
    """The rival changes the document while the answer is on its way."""
    with (
        Proxies([daemon.address]) as proxies,
        registry(proxies.addresses[0], timeout=1.0) as one,
        registry(daemon.address) as rival,
        ThreadPoolExecutor(1) as pool,
    ):
        one.get(name)
        proxies.stall(0, "down")
        calling = pool.submit(one.cas, name, 0, b"mine")
        empty = rival.get(name)
        mine = empty if empty.version else rival.watch(name, empty, TIMEOUT)
        assert mine.value == b"mine"
        assert rival.cas(name, mine.version, b"theirs")[0]
        wait_until(lambda: proxies.made[0] > 1, TIMEOUT)  # the client gave up the connection
        proxies.resume(0)
        done, record = calling.result(TIMEOUT)
        assert done and record.value == b"theirs"


def test_a_storm_on_the_wire_loses_no_call(daemon: Daemon, name: str) -> None:
    storm = harms.Storm(seed=3, share=0.1)
    storm.active = True
    with Proxies([daemon.address], storm, framed=True) as proxies:
        with registry(proxies.addresses[0], timeout=20.0) as one:
            record = one.get(name)
            lease = one.lease(name, "h", b"", 20.0)
            for number in range(40):
                done, record = one.cas(name, record.version, b"%d" % number)
                assert done and record.version == number + 1
                lease.change(b"%d" % number)
        assert proxies.made[0] > 3
    with registry(daemon.address) as two:
        assert two.get(name).value == b"39"


def test_nobody_at_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    with registry(address, timeout=0.3) as one:
        for call in (lambda: one.get("view"), lambda: one.cas("view", 0, b"")):
            started = time.monotonic()
            with pytest.raises(ReducerUnavailableError, match=address):
                call()
            assert 0.3 <= time.monotonic() - started < 0.3 + AT_ONCE


def test_a_frozen_reducer_delays_no_call_beyond_its_timeout(file: str) -> None:
    with (
        Reducers(1, "--registry", file) as reducers,
        registry(reducers.addresses[0], timeout=0.5) as one,
    ):
        one.lease("view", "rank 0", b"", 0.5)
        seen = one.get("view")
        reducers.freeze(0)
        try:
            started = time.monotonic()
            with pytest.raises(ReducerUnavailableError, match=reducers.addresses[0]):
                one.get("view")
            assert time.monotonic() - started < 0.5 + AT_ONCE
            with pytest.raises(ReducerUnavailableError):
                one.watch("view", seen, 0.1)
        finally:
            reducers.thaw(0)
        wait_until(lambda: _try(lambda: one.get("view")) == seen, TIMEOUT)


def _try(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ReducerUnavailableError:
        return None


def test_a_reducer_without_a_registry_says_so_at_once() -> None:
    with Daemon() as daemon, registry(daemon.address) as one:
        started = time.monotonic()
        with pytest.raises(ReducerUnavailableError, match="--registry FILE"):
            one.get("view")
        assert time.monotonic() - started < AT_ONCE


def test_a_forked_child_cannot_use_it(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry(daemon.address) as one:
        monkeypatch.setattr(one, "_pid", 1)
        with pytest.raises(ClosedError, match="parent process"):
            one.get("view")
        monkeypatch.undo()


# --- proofs ---------------------------------------------------------------------------------------


def test_psk(key_file: str, file: str) -> None:
    master = keyfile.read(key_file)
    with Daemon("--key-file", key_file, "--registry", file) as daemon:
        with registry(daemon.address, key=job_key(master, "job")) as one:
            assert one.cas("view", 0, b"mine")[0]
        with registry(daemon.address, "other", key=job_key(master, "other")) as other:
            assert other.get("view").version == 0
            assert other.cas("view", 0, b"theirs")[1].version == 1
        for wrong in (job_key(master, "other"), bytes(32)):
            with registry(daemon.address, key=wrong) as stranger:
                started = time.monotonic()
                with pytest.raises(AuthenticationError, match=daemon.address):
                    stranger.get("view")
                assert time.monotonic() - started < AT_ONCE
        with registry(daemon.address) as keyless, pytest.raises(AuthenticationError):
            keyless.get("view")
        with registry(daemon.address, key=job_key(master, "job")) as one:
            assert one.get("view").value == b"mine"


def test_a_key_for_a_reducer_without_one_is_refused(daemon: Daemon) -> None:
    with (
        registry(daemon.address, key=bytes(32)) as one,
        pytest.raises(AuthenticationError, match="asks for no key"),
    ):
        one.get("view")


def test_tls(authority: Authority, certs: Files, file: str, tmp_path: Path) -> None:
    def files(found: Files) -> tuple[str, str, str]:
        return found.cert, found.key, found.ca

    of_job = files(authority.issue_for("reducer://job/mine"))
    of_rank = files(authority.issue_for("reducer://job/mine/rank/3"))
    stranger = files(Authority(tmp_path / "other").issue())
    with Daemon(*certs.flags, "--registry", file) as daemon:
        with registry(daemon.address, "mine", tls=of_job) as one:
            assert one.cas("view", 0, bytes(40_000))[0]
            lease = one.lease("view", "h", b"v", TIMEOUT)
            with registry(daemon.address, "mine", tls=of_rank) as two:
                seen = two.get("view")
                assert len(seen.value) == 40_000 and dict(seen.leases) == {"h": b"v"}
                with ThreadPoolExecutor(1) as pool:
                    watching = pool.submit(two.watch, "view", seen, TIMEOUT)
                    lease.close()
                    assert not watching.result(TIMEOUT).leases
        with registry(daemon.address, "other", tls=files(certs)) as other:
            assert other.get("view").version == 0
        with (
            registry(daemon.address, "other", tls=of_job) as one,
            pytest.raises(AuthenticationError, match="registry of job 'other'"),
        ):
            one.get("view")
        ours = authority.issue()
        for wrong in (stranger, (stranger[0], stranger[1], ours.ca)):
            with (
                registry(daemon.address, "mine", tls=wrong) as one,
                pytest.raises(AuthenticationError, match=daemon.address),
            ):
                one.get("view")


# --- strangers ------------------------------------------------------------------------------------


def test_garbage_ends_only_its_own_connection(daemon: Daemon, name: str) -> None:
    chance = random.Random(11)
    opened = control(RegistryCall("open", job="job"), key=1)
    with registry(daemon.address) as one:
        record = one.cas(name, 0, b"kept")[1]
        for number in range(150):
            frames = control(
                RegistryCall(
                    chance.choice(("open", "get", "cas", "lease")),
                    job="other",
                    name=chance.choice(("", name, "x" * 256)),
                    version=chance.choice((0, 1, 1 << 62)),
                    value=bytes(chance.choice((0, 5_000))),
                    holder=chance.choice(("", "h")),
                    milliseconds=chance.choice((0, 1, 3_600_000)),
                    boot=chance.randbytes(chance.choice((0, 16))),
                    revision=chance.choice((0, 1 << 62)),
                ),
                key=chance.getrandbits(64),
            )
            if number % 3 == 0:
                frames = chance.randbytes(200)
            elif number % 3 == 1:
                at = chance.randrange(len(frames))
                frames = frames[:at] + bytes([frames[at] ^ 1 << chance.randrange(8)]) + frames[at:]
            with socket.create_connection(("127.0.0.1", daemon.port)) as sock:
                sock.sendall(pack_preface(number % 2) + opened * (number % 5 > 0) + frames)
        assert one.get(name) == record


def test_a_process_that_is_no_reducer(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b" " * 100)
                sock.recv(1 << 16)

        with registry(address) as one, ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer)
            with pytest.raises(ProtocolError, match=address):
                one.get(name)
            answering.result(TIMEOUT)


# --- crowds ---------------------------------------------------------------------------------------


def test_two_thousand_racing_changes_give_two_thousand_versions(daemon: Daemon, name: str) -> None:
    threads, wins = 8, 250

    def race(number: int) -> list[int]:
        versions: list[int] = []
        with registry(daemon.address, timeout=30.0) as one:
            record = one.get(name)
            while len(versions) < wins:
                done, record = one.cas(name, record.version, b"%d %d" % (number, len(versions)))
                if done:
                    versions.append(record.version)
        return versions

    with ThreadPoolExecutor(threads) as pool:
        won = [version for each in pool.map(race, range(threads)) for version in each]
    assert len(won) == threads * wins
    with registry(daemon.address) as one:
        assert one.get(name).version == threads * wins


def test_a_watch_wakes_soon(daemon: Daemon, name: str) -> None:
    """The promise is 100 ms, also for the second of two changes in a row. The median counts, since
    the machine may be busy.
    """
    waits: list[float] = []
    with registry(daemon.address) as one, registry(daemon.address) as two:
        seen = two.get(name)
        with ThreadPoolExecutor(1) as pool:
            for number in range(20):
                watching = pool.submit(_watch, two, name, seen)
                time_of_change = time.monotonic()
                assert one.cas(name, seen.version, b"%d" % number)[0]
                seen, woken_at = watching.result(TIMEOUT)
                waits.append(woken_at - time_of_change)
    assert statistics.median(waits) < 0.1, waits


def _watch(found: DaemonRegistry, name: str, seen: Any) -> tuple[Any, float]:
    return found.watch(name, seen, TIMEOUT), time.monotonic()


def test_a_thousand_holders_are_seen_and_go(daemon: Daemon, name: str) -> None:
    count = 1_000
    with registry(daemon.address) as watcher:
        seen = watcher.get(name)
        clients = [DaemonRegistry(daemon.address, "job", timeout=TIMEOUT) for _ in range(4)]

        def hold(number: int) -> None:
            clients[number % 4].lease(name, f"rank {number}", b"%d" % number * 20, 60.0)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(hold, range(count)))
        while len(seen.leases) < count:
            changed = watcher.watch(name, seen, TIMEOUT)
            assert changed != seen
            seen = changed
        assert seen.leases["rank 999"] == b"999" * 20
        assert watcher.get(name) == seen
        for client in clients:
            client.close()
        while seen.leases:
            seen = watcher.watch(name, seen, TIMEOUT)


def test_the_status_and_the_sums_go_on_beside_the_registry(daemon: Daemon) -> None:
    assert daemon.get("/readyz")[0] == 200
    with socket.create_connection(("127.0.0.1", daemon.port)) as sock:
        sock.sendall(pack_preface(0, PrefaceFlag.PSK))
    os.kill(daemon.lane_pid(1), signal.SIGKILL)  # a lane without the registry
    with registry(daemon.address) as one:
        assert one.get("view") == one.get("view")
    wait_until(lambda: daemon.get("/readyz")[0] == 200, 10.0)
