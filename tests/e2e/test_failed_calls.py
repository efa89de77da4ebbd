"""Calls that fail on one rank alone, before or after the engine has them."""

from __future__ import annotations

import errno
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from reducer_client import PeerLostError, ReducerError
from reducer_client import group as group_module
from reducer_client.completer import Completer
from tests.support.ranks import join, run_ranks

ROUNDS = 8
PATIENCE = 20.0


def _sum_of(group: Any, turn: int) -> float:
    """A sum with a callback, which needs a thread, and no key, so that ranks count their calls."""
    called = threading.Event()
    mine = np.full(4, 10.0 * turn + group.rank + 1, np.float32)
    work = group.all_reduce(mine, on_done=lambda _: called.set())
    assert called.wait(PATIENCE), "no callback has come"
    return float(work.wait(PATIENCE)[0])


def _sums(group: Any, turns: range) -> list[float]:
    return [_sum_of(group, turn) for turn in turns]


def _right(turns: range) -> list[float]:
    return [20.0 * turn + 3 for turn in turns]


def _without_a_thread(rank: int, world: int, addresses: list[str], job: str) -> list[float]:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with join(rank, world, addresses, job) as group, pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                _sum_of(group, 0)
            patch.setattr(threading.Thread, "start", start)
        return _sums(group, range(ROUNDS))


def test_a_call_that_was_refused_for_lack_of_a_thread_is_made_again(
    addresses: list[str], job: str
) -> None:
    """Regression: the engine had the call already, so the second one was a round late."""
    assert run_ranks(2, _without_a_thread, addresses, job) == [_right(range(ROUNDS))] * 2


def _without_memory(rank: int, world: int, addresses: list[str], job: str) -> list[float]:
    def fail(*args: object, **options: object) -> None:
        raise MemoryError("injected")

    group = join(rank, world, addresses, job)
    found = _sums(group, range(3))
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(group_module, "Work", fail)
            with pytest.raises(MemoryError):
                _sum_of(group, 3)
    with suppress(PeerLostError):  # the round may have been complete before rank 0 left
        assert rank == 0 or _sum_of(group, 3) == _right(range(3, 4))[0]
    with pytest.raises(PeerLostError if rank else ReducerError):
        _sums(group, range(4, 6))
    group.close()
    return found


def test_a_call_that_fails_when_the_engine_has_it_ends_the_group(
    addresses: list[str], job: str
) -> None:
    assert run_ranks(2, _without_memory, addresses, job) == [_right(range(3))] * 2


def _without_a_completer(rank: int, world: int, addresses: list[str], job: str) -> bool:
    def fail(self: Completer, operation: object) -> None:
        raise MemoryError("injected")

    group = join(rank, world, addresses, job)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(Completer, "_complete", fail)
        called = threading.Event()
        work = group.all_reduce(np.ones(4, np.float32), on_done=lambda _: called.set())
        assert called.wait(PATIENCE), "no callback has come"
        if rank == 1:
            assert work.wait(PATIENCE)[0] == 2
    group.close()
    return True


def _with_a_broken_handler(rank: int, world: int, addresses: list[str], job: str) -> float:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with join(rank, world, addresses, job) as group:
        handler = Full()
        reports = logging.getLogger("reducer_client")
        reports.addHandler(handler)
        try:
            work = group.all_reduce(np.ones(4, np.float32), on_done=_raise)
            work.wait(PATIENCE)
            return _sum_of(group, 1)
        finally:
            reports.removeHandler(handler)


def _raise(work: object) -> None:
    raise ValueError("of the callback")


def test_a_handler_of_logs_that_fails_ends_no_callbacks(addresses: list[str], job: str) -> None:
    assert run_ranks(2, _with_a_broken_handler, addresses, job) == _right(range(1, 2)) * 2


def test_callbacks_come_although_their_thread_fails(addresses: list[str], job: str) -> None:
    """Regression: the thread ended silently, and programs waited for callbacks for ever."""
    assert run_ranks(2, _without_a_completer, addresses, job) == [True, True]


def _interrupted(rank: int, world: int, addresses: list[str], job: str, when: str) -> str:
    """A program that goes on after Ctrl-C, which hits rank 0 around its fourth call."""

    class Interrupted:
        """The engine, with an interrupt in `submit`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        def submit(self, *arguments: Any) -> Any:
            if when == "before":
                raise KeyboardInterrupt
            engine.submit(*arguments)
            raise KeyboardInterrupt

    group = join(rank, world, addresses, job)
    engine = group._engine
    key = "k" if when == "keyed" else None

    def call(turn: int) -> None:
        if when == "barrier":
            group.barrier(PATIENCE)
            return
        work = group.all_reduce(np.full(4, turn, np.float32), key=key)
        if rank != 0 or turn != 3:
            found = work.wait(PATIENCE)
            assert found[0] == 2 * turn, f"rank {rank}: {found[0]} in turn {turn}"

    for turn in range(3):
        call(turn)
    if rank == 0:
        group._engine = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            call(3)
        group._engine = engine
    try:
        for turn in range(3, 6):
            call(turn)
    except ReducerError as error:
        return type(error).__name__
    finally:
        group.close()
    return "no error"


@pytest.mark.parametrize("when", ["before", "after", "keyed", "barrier"])
def test_an_interrupt_in_the_middle_of_a_call_ends_the_group(
    addresses: list[str], job: str, when: str
) -> None:
    """The program cannot know whether the engine has the call, so it must not repeat it."""
    ended = run_ranks(2, _interrupted, addresses, job, when)
    assert ended == ["ClosedError", "PeerLostError"]


def _keys_like_parts(rank: int, world: int, addresses: list[str], job: str) -> list[float]:
    def many(group: Any) -> list[float]:
        arrays = [np.full(100, turn + rank, np.float64) for turn in (1, 10)]
        results = group.all_reduce_many(arrays, key="w", fusion_threshold=800).wait(PATIENCE)
        return [float(result[0]) for result in results]

    def one(group: Any) -> list[float]:
        mine = np.full(100, 1000 + rank, np.float64)
        return [float(group.all_reduce(mine, key="w/1").wait(PATIENCE)[0])]

    with join(rank, world, addresses, job) as group, ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(call, group) for call in ((many, one) if rank else (one, many))]
        found = [call.result(PATIENCE) for call in calls]
    first, second = found if rank else reversed(found)
    return first + second


def test_no_key_of_the_program_is_that_of_a_fusion_buffer(addresses: list[str], job: str) -> None:
    """Regression: "w/1" was also the key of the second buffer of "w"."""
    assert run_ranks(2, _keys_like_parts, addresses, job) == [[3, 21, 2001]] * 2


def test_out_takes_the_result_itself(addresses: list[str], job: str) -> None:
    class Copies:
        def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
            return np.zeros(4, np.float32)

    with (
        join(0, 1, addresses, job) as group,
        pytest.raises(TypeError, match="Copies, whose __array__ makes a new array each time"),
    ):
        group.all_reduce(np.ones(4, np.float32), out=Copies())
