"""Callbacks of finished works run once, however late the submitting thread registers them."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from reducer_client import completer
from reducer_client.completer import Completer
from tests.support.wait import wait_until


class _Ended:
    """A fake engine: the operations given to `finish` have ended."""

    def __init__(self) -> None:
        self._operations: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.finish = self._operations.put

    def next_event(self, timeout: float) -> Any:
        try:
            return self._operations.get(timeout=timeout), True
        except queue.Empty:
            return None

    def taken(self) -> bool:
        return self._operations.empty()


def test_a_late_registration_has_its_callback_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completer, "_REGISTRATION", 0.05)
    engine: Any = _Ended()
    reports: Any = SimpleNamespace(collect=lambda: None)
    ours = Completer(engine, reports)
    ours.begin()
    early, late = object(), object()
    called, other = threading.Event(), threading.Event()
    work: Any = None
    engine.finish(late)
    engine.finish(early)
    ours.expect(early, work, 60, other.set)  # type: ignore[arg-type]
    assert other.wait(30)  # the completer has given up waiting for `late`
    ours.expect(late, work, 60, called.set)  # type: ignore[arg-type]
    assert called.is_set()
    wait_until(engine.taken, 30)
    ours.stop()
