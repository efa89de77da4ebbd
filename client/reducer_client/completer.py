"""The thread that runs the callbacks of finished works. The first ``on_done`` starts the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from reducer_client.errors import ClosedError, ReducerError
from reducer_client.reports import StallReports, logger
from reducer_client.work import Work

if TYPE_CHECKING:
    from reducer_client._engine import Engine, Operation

# All in seconds. The longest single wait of the thread; closing a group can take as long.
_NAP = 0.2
# The period of the search for stall reports and for works past their deadline.
_CHECK = 1.0
# How long the thread waits for ``stop`` after the engine has ended.
_CLOSING = 0.05
# How long the thread waits until ``expect`` registers an operation that has finished. After that
# the callback runs out of order, on the thread that submitted the operation.
_REGISTRATION = 10.0


class _Expected(NamedTuple):
    deadline: float
    limit: float
    callback: Callable[[], None]
    progress: Callable[[int], None] | None
    work: Work[Any]


class Completer:
    """Runs callbacks in the order in which operations finish, and fails works past their deadline.

    The thread is not the engine's. A callback may block, submit works and wait for works. A
    callback must not wait for the *callback* of another work, which runs on the same thread.
    """

    def __init__(self, engine: Engine, reports: StallReports) -> None:
        self._engine = engine
        self._reports = reports
        self._changed = threading.Condition()
        self._waiting: dict[Operation, _Expected] = {}
        self._dropped: set[Operation] = set()
        self._unclaimed: set[Operation] = set()
        self._stopping = False
        self._next: _Expected | None = None  # taken out of _waiting, callback not called yet
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread if it does not run. Call this before the operation is submitted.

        Raises RuntimeError if the system cannot start a thread.
        """
        with self._changed:
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._run, name="reducer-completer", daemon=True)
                thread.start()
                self._thread = thread

    def expect(
        self,
        operation: Operation,
        work: Work[Any],
        limit: float,
        callback: Callable[[], None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Run ``callback`` once when the operation has finished. ``begin`` must come first.

        The operation must have been submitted with notify. The work fails after ``limit`` seconds.
        ``progress`` is called with the number of elements that have arrived, for each part that
        arrives after this call.
        """
        with self._changed:
            ended = operation in self._unclaimed
            if ended:
                self._unclaimed.discard(operation)
            else:
                deadline = time.monotonic() + limit
                self._waiting[operation] = _Expected(deadline, limit, callback, progress, work)
                self._changed.notify_all()
            stopped = self._stopping
        if ended:
            _call(callback)
        elif stopped:
            self._fail_rest()

    def stop(self) -> None:
        """Run the remaining callbacks and end the thread. The engine must be closed before."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._fail_rest()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # out of memory
            # Without this thread no callback runs and no deadline is enforced.
            self._stopping = True
            self._engine.abort()
            self._call_next()
            self._fail_rest()
            logger.exception("the thread that runs callbacks has failed: the group ends")

    def _serve(self) -> None:
        checked = 0.0
        while True:
            asked = time.monotonic()
            event = self._engine.next_event(_NAP)
            now = time.monotonic()
            if event is not None:
                operation, finished = event
                if finished:
                    self._complete(operation)
                else:
                    self._report(operation)
            if now - checked >= _CHECK:
                checked = now
                with suppress(Exception):  # the program's logging handler may fail
                    self._reports.collect()
                self._expire(now)
            # A None before the timeout means that the engine is closing; ``stop`` follows.
            if event is None and self._is_stopping(0.0 if now - asked >= _NAP else _CLOSING):
                return

    def _is_stopping(self, wait: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping, wait)

    def _report(self, operation: Operation) -> None:
        with self._changed:
            entry = self._waiting.get(operation)
        if entry is not None and entry.progress is not None:
            _call(partial(entry.progress, operation.arrived))

    def _complete(self, operation: Operation) -> None:
        with self._changed:
            if operation in self._dropped:
                self._dropped.discard(operation)
                return
            self._changed.wait_for(
                lambda: operation in self._waiting or self._stopping, _REGISTRATION
            )
            self._next = self._waiting.pop(operation, None)
            if self._next is None and not self._stopping:
                self._unclaimed.add(operation)
        self._call_next()

    def _call_next(self) -> None:
        entry, self._next = self._next, None
        if entry is not None:
            _call(entry.callback)

    def _expire(self, now: float) -> None:
        with self._changed:
            late = {op: e for op, e in self._waiting.items() if e.deadline <= now and not op.done}
            for operation in late:
                del self._waiting[operation]
                self._dropped.add(operation)
        if not late:
            return
        absent = self._reports.ask()
        expired = [entry for operation, entry in late.items() if not operation.done]
        for entry in expired:
            entry.work._expire(entry.limit, absent)
        if expired:
            # The callbacks below let the program use its buffers again: the engine must stop first.
            self._engine.abort(str(expired[0].work.exception()))
        for entry in late.values():
            _call(entry.callback)

    def _fail_rest(self) -> None:
        with self._changed:
            rest = list(self._waiting.values())
            self._waiting.clear()
        for entry in rest:
            work = entry.work
            if not work.done:
                text = f"key {work.key!r}: the group was closed before the round had finished"
                work._fail(ClosedError(text))
            _call(entry.callback)


class Together:
    """Calls ``on_done`` with a work of several operations when the last of them has ended."""

    def __init__(self, operations: int, on_done: Callable[[Work[Any]], None]) -> None:
        self._left = operations + 1  # and the submission of all
        self._on_done = on_done
        self._lock = threading.Lock()
        self._failure: ReducerError | None = None
        self._work: Work[Any]

    def one_done(self, part: Work[Any]) -> None:
        """An operation has ended, or its time is over."""
        self._count(part.exception())

    def submitted(self, work: Work[Any]) -> None:
        """All operations of the work are submitted."""
        self._work = work
        self._count(None)

    def _count(self, failure: ReducerError | None) -> None:
        with self._lock:
            self._failure = self._failure or failure
            self._left -= 1
            if self._left:
                return
        if self._failure is None:
            self._work._unpack_once()
        else:
            self._work._fail(self._failure)
        self._on_done(self._work)


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        # The work reports errors of the round. This error is the callback's own.
        with suppress(Exception):
            logger.exception("a callback of a finished work failed")
