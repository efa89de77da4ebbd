"""The peak bytes in the buffers of a daemon's lanes during a test.

Resident memory, which also holds what the allocator keeps, is asserted by ``python -m tests.soak``.
"""

from __future__ import annotations

import threading
from types import TracebackType

from tests.support.cluster import Daemon

_EVERY = 0.05  # seconds


class Weighed:
    """A context manager that asks the daemon again and again."""

    def __init__(self, daemon: Daemon) -> None:
        self.most = 0
        self._daemon = daemon
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY):
            self.most = max(self.most, self._daemon.lane_total("buffer_bytes"))

    def __enter__(self) -> Weighed:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
