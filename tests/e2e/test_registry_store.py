"""The registry over torch's TCPStore when the server of the store is gone, and its own rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from reducer_client.errors import ClosedError, ReducerUnavailableError
from reducer_client.torch import store_registry
from reducer_client.torch.store_registry import StoreRegistry
from tests.support.ports import free_port
from tests.support.wait import AT_ONCE, wait_until

TIMEOUT = 5.0


def server(port: int = 0) -> TCPStore:
    return TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)


@pytest.fixture(scope="module", autouse=True)
def first_server() -> None:
    """The first server of a process makes a pipe that libuv keeps."""
    server()


@pytest.fixture
def made() -> Iterator[Callable[..., StoreRegistry]]:
    """Makes registries, which are closed after the test."""
    found: list[StoreRegistry] = []

    def make(store: TCPStore, **more: float) -> StoreRegistry:
        found.append(StoreRegistry(store, **{"interval": 0.05, "timeout": TIMEOUT, **more}))  # type: ignore[arg-type]
        return found[-1]

    yield make
    for each in found:
        each.close()


def test_other_stores_are_refused() -> None:
    store = HashStore()
    for other in (store, PrefixStore("p", store)):
        with pytest.raises(TypeError, match="expected a TCPStore"):
            StoreRegistry(other)


def test_the_keys_of_the_job_are_left_alone(made: Callable[..., StoreRegistry]) -> None:
    store = server()
    store.set("view", "of the job")
    one = made(store)
    assert one.get("view").version == 0
    one.cas("view", 0, b"x")
    assert store.get("view") == b"of the job"


def test_a_store_that_waits_delays_no_call(made: Callable[..., StoreRegistry]) -> None:
    """A program may wait in the store for minutes, with the store's lock held."""
    from concurrent.futures import ThreadPoolExecutor

    store = server()
    client = TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False)
    one = made(client)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "comes late")
        started = time.monotonic()
        assert one.cas("view", 0, b"x")[0]
        assert time.monotonic() - started < AT_ONCE
        store.set("comes late", "x")
        waiting.result(TIMEOUT)


def test_a_store_that_comes_back_is_another_incarnation_with_the_leases_of_the_living(
    made: Callable[..., StoreRegistry],
) -> None:
    port = free_port()
    store = server(port)
    one, two = made(store), made(store, timeout=0.5)
    one.cas("view", 0, b"lost")
    one.lease("view", "rank 0", b"here", 0.5)
    seen = two.get("view")
    del store
    wait_until(lambda: _is_unavailable(two), TIMEOUT)
    started = time.monotonic()
    with pytest.raises(ReducerUnavailableError, match=f"127.0.0.1:{port}"):
        two.watch("view", seen, 0.1)
    assert time.monotonic() - started < 0.5 + AT_ONCE
    again = server(port)
    wait_until(lambda: not _is_unavailable(two), TIMEOUT)
    wait_until(lambda: dict(two.get("view").leases) == {"rank 0": b"here"}, TIMEOUT)
    record = two.get("view")
    assert record.incarnation != seen.incarnation
    assert (record.version, record.value) == (0, b"")
    one.close()
    two.close()
    del again


def _is_unavailable(found: StoreRegistry) -> bool:
    try:
        found.get("view")
    except ReducerUnavailableError:
        return True
    return False


def test_a_lease_is_over_before_it_is_forgotten(
    made: Callable[..., StoreRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_registry, "_FORGOTTEN_AFTER", 1_000.0)
    store = server()
    one, two = made(store), made(store)
    one.lease("view", "dies", b"", 0.2)
    assert set(two.get("view").leases) == {"dies"}
    one.abandon()
    wait_until(lambda: not two.get("view").leases, TIMEOUT)


def test_dead_holders_are_forgotten(made: Callable[..., StoreRegistry]) -> None:
    store = server()
    one, two = made(store), made(store)
    one.lease("view", "dies", b"", 0.2)
    assert set(two.get("view").leases) == {"dies"}
    one.abandon()
    wait_until(lambda: not two.get("view").leases, TIMEOUT)
    key = "reducer/registry/view/holders"
    wait_until(lambda: two.get("view") and store.get(key) == b"[]", TIMEOUT)


def test_a_forked_child_cannot_use_it(
    made: Callable[..., StoreRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(server())
    monkeypatch.setattr(one, "_pid", 1)
    with pytest.raises(ClosedError, match="parent process"):
        one.get("view")
    monkeypatch.undo()
