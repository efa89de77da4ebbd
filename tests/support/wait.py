"""The only way in which a test waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# The limit for "at once" in a test with a clock: a busy machine may need a part of a second for
# nothing, so no test has a tighter limit.
AT_ONCE = 2.0

# The promises are 1 s from the death of a worker until each other rank has its error, and 6 s where
# it is only silent, on a quiet machine. The first limit is below the 5 s after which silence counts
# as death.
LOST_SECONDS = 1.0 + AT_ONCE
SILENT_SECONDS = 6.0 + AT_ONCE


def wait_until(
    predicate: Callable[[], T], timeout: float, what: str = "", interval: float = 0.02
) -> T:
    """Call ``predicate`` until it returns something true, and return that.

    Raises AssertionError after ``timeout`` seconds with ``what`` and the last value.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or predicate}; last: {value!r}")
        time.sleep(interval)
