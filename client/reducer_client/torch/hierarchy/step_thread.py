"""A thread that runs functions one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from reducer_client.reports import logger


class StepThread:
    """Runs steps in order. A step that raises is logged. The thread is a daemon thread."""

    def __init__(self, name: str) -> None:
        self._steps: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, step: Callable[[], None]) -> None:
        self._steps.put(step)

    def stop(self) -> None:
        """Return when all steps are done. No step may be added any more."""
        self._steps.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._take():
            pass

    def _take(self) -> bool:
        # A step holds arrays. It is a local variable here, so that the wait for the next frees it.
        step = self._steps.get()
        try:
            if step is not None:
                step()
        except Exception:
            with suppress(Exception):  # the program's logging handler may fail
                logger.exception("%s: a step failed", threading.current_thread().name)
        return step is not None
