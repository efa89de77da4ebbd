"""Writes the registry's file in a thread, since a disk may take seconds and a lane has no time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from reducer.core.surface.events import Store, Stored
from reducer.server.registry.file import RegistryFile

logger = logging.getLogger("reducer.lane")


class RegistryWriter:
    """Carries out one Store at a time, and hands `Stored` to ``feed`` in the event loop."""

    def __init__(self, file: RegistryFile, feed: Callable[[Stored], None]) -> None:
        self._file = file
        self._feed = feed
        self._thread = ThreadPoolExecutor(1, "registry")
        self._loop = asyncio.get_running_loop()
        self._writing: Future[None] | None = None

    def store(self, store: Store) -> None:
        self._writing = self._thread.submit(self._file.write, store.floor, store.documents)
        self._writing.add_done_callback(self._wake)

    def _wake(self, _: Future[None]) -> None:
        try:  # noqa: SIM105  # suppress() takes memory, which may be what has ended
            self._loop.call_soon_threadsafe(self.tick)
        except Exception:  # the tick finds the end of a write too
            pass

    def tick(self) -> None:
        """Report the end of the write, if there was one."""
        writing = self._writing
        if writing is None or not writing.done():
            return
        self._writing = None
        error = writing.exception()
        if error is None:
            self._feed(Stored(""))
        elif isinstance(error, OSError):
            self._feed(Stored(error.strerror or repr(error)))
        else:
            logger.error("internal error: the registry was not written", exc_info=error)
            self._feed(Stored(f"{type(error).__name__}: {error}"))
