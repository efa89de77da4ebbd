"""The state that all threads of one parameter server share: the lock, and the error at the end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

from reducer_client.errors import ClosedError, ReducerError, RoundTimeoutError
from reducer_client.tables.callbacks import Callbacks

logger = logging.getLogger("reducer_client.tables")

Timeout: TypeAlias = float | timedelta

# The longest wait without a look at the end: a lost wake-up would delay a caller by this.
_NAP = 5.0


class Shared:
    """The lock is the lock of `changed`. A thread that changes a waited-for state notifies it.

    ``timeout``: default of each wait, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.timeout = timeout
        self.callbacks = Callbacks()
        self.failure: ReducerError | None = None
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raises ClosedError in a forked child, which must take no lock of its parent."""
        if self.is_forked:
            raise ClosedError(
                "this parameter server belongs to the parent process: a forked child must make its "
                "own (reducer_client.parameter_server)",
                reason="forked",
            )

    def check(self) -> None:
        """Raises the error that has ended the parameter server. The caller holds the lock."""
        if self.failure is not None:
            raise self.failure

    def end(self, error: ReducerError) -> None:
        """All waits fail with this error from now on. The first error counts. The caller holds the
        lock.
        """
        if self.failure is None:
            self.failure = error
        self.changed.notify_all()

    def wait_until(
        self,
        is_done: Callable[[], bool],
        timeout: float | None,
        describe: Callable[[float], str],
    ) -> None:
        """Wait until ``is_done``, which may raise. The caller holds the lock.

        Raises RoundTimeoutError with the text of ``describe(seconds)``, or the error that has ended
        the parameter server.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while not is_done():
            self.check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise RoundTimeoutError(describe(limit), reason="timeout")
            self.changed.wait(min(left, _NAP))


def as_seconds(timeout: Timeout | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
