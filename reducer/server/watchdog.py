"""Ends a process whose event loop no longer runs its timers.

Without memory the loop may lose a callback, and with it the timer that every deadline needs. A
thread therefore watches the loop. The thread allocates nothing and writes nothing, because the
reader of its output might be stopped as well. It counts its own seconds: while the whole process is
stopped, the count stops.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

SECONDS: Final = 30
EXIT_WITHOUT_BEAT: Final = 70  # EX_SOFTWARE of sysexits.h


class Watchdog:
    """Ends the process ``seconds`` after the last `beat`."""

    def __init__(self, seconds: int = SECONDS) -> None:
        self._seconds = seconds
        self._silent = 0
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        self._silent = 0

    def _watch(self) -> None:
        while self._silent <= self._seconds:
            time.sleep(1.0)
            self._silent += 1
        os._exit(EXIT_WITHOUT_BEAT)
