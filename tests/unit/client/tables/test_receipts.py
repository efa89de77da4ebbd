"""A push, as its caller sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from reducer_client.errors import ClosedError, RoundTimeoutError
from reducer_client.tables.receipts import Push, Receipt
from reducer_client.tables.shared import Shared

RECEIPT = Receipt("applied", 3, 1, (3, 4))


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared(5.0)
    yield made
    made.callbacks.stop()


def settle(shared: Shared, push: Push, result: Receipt | ClosedError = RECEIPT) -> None:
    with shared.changed:
        push.settle(result)


def test_wait_returns_the_receipt_as_often_as_one_likes(shared: Shared) -> None:
    push = Push(shared, "net", 1)
    assert not push.done and push.exception() is None
    threading.Timer(0.01, settle, (shared, push)).start()
    assert push.wait() is RECEIPT and push.wait(0.0) is RECEIPT and push.done


def test_the_first_end_counts(shared: Shared) -> None:
    push = Push(shared, "net", 1)
    settle(shared, push)
    settle(shared, push, ClosedError("closed"))
    assert push.wait() is RECEIPT and push.exception() is None


def test_a_wait_that_is_too_long_names_the_push_and_may_be_repeated(shared: Shared) -> None:
    push = Push(shared, "net", 7)
    with pytest.raises(RoundTimeoutError, match=r"'net': push 7 has no receipt after 0\.01 s"):
        push.wait(0.01)
    settle(shared, push)
    assert push.wait() is RECEIPT


def test_a_wait_ends_with_the_parameter_server(shared: Shared) -> None:
    push = Push(shared, "net", 1)
    error = ClosedError("closed", reason="closed")
    with shared.changed:
        shared.end(error)
    with pytest.raises(ClosedError, match="closed"):
        push.wait()


def test_callbacks_run_once_on_another_thread_or_at_once(shared: Shared) -> None:
    push, seen, ran = Push(shared, "net", 1), [], threading.Event()

    def note(done: Push) -> None:
        seen.append((done.wait(), threading.get_ident()))
        ran.set()

    push.add_done_callback(note)
    settle(shared, push)
    assert ran.wait(5)
    push.add_done_callback(note)
    assert [receipt for receipt, _ in seen] == [RECEIPT, RECEIPT]
    assert seen[0][1] != threading.get_ident() == seen[1][1]


def test_a_callback_that_fails_does_not_stop_the_next(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    push, ran = Push(shared, "net", 1), threading.Event()
    push.add_done_callback(lambda _: 1 / 0)
    push.add_done_callback(lambda _: ran.set())
    settle(shared, push)
    assert ran.wait(5)
    assert "ZeroDivisionError" in caplog.text


def test_a_push_can_be_awaited(shared: Shared) -> None:
    good, bad = Push(shared, "net", 1), Push(shared, "net", 2)

    async def run() -> Receipt:
        asyncio.get_running_loop().call_later(0.01, settle, shared, good)
        asyncio.get_running_loop().call_later(0.01, settle, shared, bad, ClosedError("end"))
        with pytest.raises(ClosedError, match="end"):
            await bad
        return await good

    assert asyncio.run(run()) is RECEIPT
