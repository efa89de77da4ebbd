"""The thread that runs the callbacks of finished pushes. The first callback starts it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger("reducer_client.tables")


class Callbacks:
    """Runs callbacks one after the other. A callback may push, pull and wait for pushes.

    A callback must not wait for another callback, which would run on the same thread.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the thread if it does not run."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="table-callbacks")
                self._thread.daemon = True
                self._thread.start()

    def run_later(self, callback: Callable[[], object]) -> None:
        self._waiting.put(callback)

    def stop(self) -> None:
        """Run the callbacks that wait, end the thread, and return."""
        with self._lock:
            thread = self._thread
        self._waiting.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _run(self) -> None:
        while (callback := self._waiting.get()) is not None:
            try:
                callback()
            except Exception:
                logger.exception("a callback of a push raised an error")
