"""The contract of `reducer_client.registry.interface`, kept by every registry."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from reducer_client.errors import ClosedError, QuotaExceededError
from reducer_client.registry.interface import Record, Registry
from tests.support.folders import folder_in_memory
from tests.support.registries import KINDS, Backend
from tests.support.wait import AT_ONCE

SHORT = 0.6  # seconds of a lease whose end a test waits for


@pytest.fixture(scope="module", params=list(KINDS))
def backend(
    request: pytest.FixtureRequest,
) -> Iterator[Backend]:
    with folder_in_memory() as folder:
        backend = KINDS[request.param](folder)
        yield backend
        backend.close()


@pytest.fixture
def clients(backend: Backend) -> Iterator[Callable[[], Registry]]:
    """Makes clients, which are closed after the test."""
    made: list[Registry] = []

    def client() -> Registry:
        made.append(backend.client())
        return made[-1]

    yield client
    for each in made:
        each.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A record of this test alone."""
    return request.node.name


class Watching:
    """A watch in a thread of its own; `took` is the time from the start to its return."""

    def __init__(self, registry: Registry, name: str, seen: Record, timeout: float) -> None:
        self._result: list[Record] = []
        self.returned_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(registry, name, seen, timeout))
        self._thread.start()

    def _run(self, registry: Registry, name: str, seen: Record, timeout: float) -> None:
        self._result.append(registry.watch(name, seen, timeout))
        self.returned_at = time.monotonic()

    def result(self, timeout: float = 10.0) -> Record:
        self._thread.join(timeout)
        assert self._result, "the watch has not returned"
        return self._result[0]


def test_a_record_that_does_not_exist_is_empty(clients: Callable[[], Registry], name: str) -> None:
    record = clients().get(name)
    assert (record.version, record.value, dict(record.leases)) == (0, b"", {})
    assert len(bytes.fromhex(record.incarnation)) >= 8


def test_cas_sets_only_the_version_that_is_there(
    clients: Callable[[], Registry], name: str
) -> None:
    one, two = clients(), clients()
    done, first = one.cas(name, 0, b"first")
    assert done and first.value == b"first" and first.version > 0
    assert two.get(name) == first
    done, found = two.cas(name, 0, b"second")
    assert not done and found == first
    done, second = two.cas(name, first.version, b"second")
    assert done and second.version > first.version and second.value == b"second"
    done, found = one.cas(name, first.version, b"late")
    assert not done and found == second == one.get(name)


def test_cas_of_another_incarnation_changes_nothing(
    clients: Callable[[], Registry], name: str
) -> None:
    one = clients()
    seen = one.get(name)
    done, found = one.cas(name, seen.version, b"x", secrets.token_hex(16))
    assert not done and (found.version, found.value) == (0, b"")
    done, found = one.cas(name, seen.version, b"x", seen.incarnation)
    assert done and found.value == b"x"


def test_cas_of_a_version_that_is_to_come_fails(clients: Callable[[], Registry], name: str) -> None:
    done, found = clients().cas(name, 7, b"x")
    assert not done and found.version == 0


def test_records_are_apart(clients: Callable[[], Registry], name: str) -> None:
    one = clients()
    one.cas(f"{name}/a", 0, b"a")
    one.cas(f"{name}/b", 0, b"")
    assert one.get(f"{name}/a").value == b"a"
    assert one.get(f"{name}/b").value == b"" and one.get(f"{name}/b").version > 0
    assert one.get(name).version == 0


def test_all_bytes_can_be_kept(clients: Callable[[], Registry], name: str) -> None:
    value = bytes(range(256)) * 192
    assert len(value) == 48 << 10
    done, record = clients().cas(name, 0, value)
    assert done and record.value == value == clients().get(name).value


def test_a_lease_is_seen_changed_and_closed(clients: Callable[[], Registry], name: str) -> None:
    one, two = clients(), clients()
    lease = one.lease(name, "rank 0", b"here", 5.0)
    assert dict(two.get(name).leases) == {"rank 0": b"here"}
    lease.change(b"\x00\xff")
    assert dict(two.get(name).leases) == {"rank 0": b"\x00\xff"}
    lease.close()
    lease.close()
    assert dict(two.get(name).leases) == {}


def test_leases_and_documents_do_not_touch_each_other(
    clients: Callable[[], Registry], name: str
) -> None:
    one = clients()
    before = one.cas(name, 0, b"document")[1]
    lease = one.lease(name, "holder", b"value", 5.0)
    held = one.get(name)
    assert (held.version, held.value) == (before.version, before.value)
    done, after = one.cas(name, held.version, b"next")
    assert done and dict(after.leases) == {"holder": b"value"}
    lease.close()
    assert one.get(name).version == after.version


def test_a_lease_stays_while_its_process_lives_and_lapses_when_it_dies(
    backend: Backend, clients: Callable[[], Registry], name: str
) -> None:
    one, two, three = clients(), clients(), clients()
    one.lease(name, "dies", b"1", SHORT)
    three.lease(name, "lives", b"2", SHORT)
    both = two.get(name)
    assert dict(both.leases) == {"dies": b"1", "lives": b"2"}
    assert two.watch(name, both, 1.5 * SHORT) == both
    started = time.monotonic()
    backend.kill(one)
    left = two.watch(name, both, 10.0)
    assert dict(left.leases) == {"lives": b"2"}
    assert SHORT / 2 < time.monotonic() - started < SHORT + AT_ONCE


def test_the_newest_lease_of_a_holder_counts(clients: Callable[[], Registry], name: str) -> None:
    one = clients()
    old = one.lease(name, "holder", b"old", 5.0)
    new = one.lease(name, "holder", b"new", 5.0)
    old.close()
    assert dict(one.get(name).leases) == {"holder": b"new"}
    new.close()
    assert dict(one.get(name).leases) == {}


def test_closing_a_registry_ends_its_leases(clients: Callable[[], Registry], name: str) -> None:
    one, two = clients(), clients()
    one.lease(name, "holder", b"", 60.0)
    held = two.get(name)
    one.close()
    assert dict(two.watch(name, held, 5.0).leases) == {}


def test_watch_returns_at_once_for_what_was_not_seen(
    clients: Callable[[], Registry], name: str
) -> None:
    one = clients()
    done, record = one.cas(name, 0, b"x")
    assert done
    for seen in (
        Record("", 0, b"", {}),
        Record(record.incarnation, 0, b"", {}),
        Record("0" * 32, record.version, record.value, {}),
        Record(record.incarnation, record.version, record.value, {"other": b""}),
    ):
        started = time.monotonic()
        assert one.watch(name, seen, 10.0) == record
        assert time.monotonic() - started < AT_ONCE


def test_watch_returns_what_was_seen_at_its_timeout(
    clients: Callable[[], Registry], name: str
) -> None:
    one = clients()
    seen = one.get(name)
    started = time.monotonic()
    assert one.watch(name, seen, 0.3) == seen
    assert 0.3 <= time.monotonic() - started < 0.3 + AT_ONCE
    assert one.watch(name, seen, 0.0) == seen


def test_watches_wake_for_documents_and_leases(clients: Callable[[], Registry], name: str) -> None:
    one, two = clients(), clients()
    seen = two.get(name)
    watching = Watching(two, name, seen, 10.0)
    one.cas(f"{name}/other", 0, b"nobody waits for this")
    done, record = one.cas(name, 0, b"1")
    assert done and watching.result() == record
    watching = Watching(two, name, record, 10.0)
    lease = one.lease(name, "h", b"v", 5.0)
    held = watching.result()
    assert (held.version, dict(held.leases)) == (record.version, {"h": b"v"})
    watching = Watching(two, name, held, 10.0)
    lease.change(b"w")
    changed = watching.result()
    assert dict(changed.leases) == {"h": b"w"}
    watching = Watching(two, name, changed, 10.0)
    lease.close()
    assert watching.result() == record


def test_a_watch_delays_no_other_call_of_its_registry(
    clients: Callable[[], Registry], name: str
) -> None:
    one = clients()
    seen = one.get(name)
    watching = Watching(one, name, seen, 10.0)
    started = time.monotonic()
    done, record = one.cas(name, 0, b"own")
    assert done and time.monotonic() - started < AT_ONCE
    assert watching.result() == record


def test_close_wakes_a_watch_and_ends_the_registry(
    clients: Callable[[], Registry], name: str
) -> None:
    one = clients()
    seen = one.get(name)

    def watch() -> None:
        with pytest.raises(ClosedError):
            one.watch(name, seen, 30.0)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        one.close()
        one.close()
        watching.result(10)
    with pytest.raises(ClosedError):
        one.get(name)


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("document", lambda registry, name: registry.cas(name, 0, bytes((48 << 10) + 1))),
        ("lease", lambda registry, name: registry.lease(name, "h", bytes(4097), 5.0)),
        ("seconds", lambda registry, name: registry.lease(name, "h", b"", 0.0)),
        ("name", lambda registry, name: registry.get("x" * 257)),
        ("name", lambda registry, name: registry.watch("", registry.get(name), 1.0)),
        ("holder", lambda registry, name: registry.lease(name, "x" * 129, b"", 5.0)),
    ],
)
def test_what_is_above_a_limit_is_refused(
    clients: Callable[[], Registry],
    name: str,
    what: str,
    call: Callable[[Registry, str], object],
) -> None:
    one = clients()
    with pytest.raises(QuotaExceededError, match=what):
        call(one, name)
    assert one.get(name).version == 0


def test_racing_cas_lose_no_version(clients: Callable[[], Registry], name: str) -> None:
    registries = [clients() for _ in range(4)]
    wins = 25

    def race(number: int) -> list[int]:
        registry, versions = registries[number % len(registries)], []
        record = registry.get(name)
        while len(versions) < wins:
            done, record = registry.cas(name, record.version, b"%d %d" % (number, len(versions)))
            if done:
                versions.append(record.version)
        return versions

    with ThreadPoolExecutor(8) as pool:
        versions = [version for each in pool.map(race, range(8)) for version in each]
    assert len(set(versions)) == len(versions) == 8 * wins
    assert registries[0].get(name).version == max(versions)
