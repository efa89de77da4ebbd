"""The only way in which a test waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
