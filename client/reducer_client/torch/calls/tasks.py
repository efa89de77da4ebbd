"""Handles of operations that the client runs in several steps."""

from __future__ import annotations

import threading
from collections.abc import Callable

from reducer_client.errors import RoundTimeoutError
from reducer_client.torch.calls.key_scopes import Scope, entered
from reducer_client.torch.calls.works import OnDone


class Task:
    """Runs a function that waits for calls: once, on any thread, within a scope.

    The task keeps no reference to the function. A program that keeps the task's work therefore does
    not keep the works that the function waited for.
    """

    def __init__(self, scope: Scope, on_done: OnDone | None) -> None:
        self._scope = scope
        self._on_done = on_done
        self._ended = threading.Event()
        self._error: Exception | None = None
        scope.begin()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def run(self, function: Callable[[], None]) -> None:
        try:
            with entered(self._scope):
                function()
        except Exception as error:
            self._error = error
        self._scope.end()
        self._ended.set()
        if self._on_done is not None:
            self._on_done(self)

    def wait(self, timeout: float | None = None) -> None:
        if not self._ended.wait(timeout):
            raise RoundTimeoutError(
                f"task {self._scope.name!r}: not finished after {timeout:g} s", reason="timeout"
            )
        if self._error is not None:
            raise self._error

    def exception(self) -> Exception | None:
        return self._error
