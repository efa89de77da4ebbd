"""A timeline of tensors for viewers of Chrome traces, such as Perfetto.

Rank 0 writes the timeline, because it sees the announcements of all ranks. Each tensor is a process
of the trace. ``NEGOTIATE_*`` has an instant for each rank, at the time when that rank sent its
announcement by its own clock, so the last instant shows the late rank. ``QUEUE``,
``MEMCPY_IN_FUSION_BUFFER``, ``REDUCER_*`` and ``MEMCPY_OUT_FUSION_BUFFER`` follow. ``CYCLE_START``
marks each round of negotiation.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO

logger = logging.getLogger("reducer_client.horovod")


class Timeline:
    """Writes events between ``start`` and ``stop``. Any thread may call it.

    If the file cannot be written, the timeline warns and stops, so that training continues.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._mark_cycles = False
        self._pids: dict[str, int] = {}
        self._open: dict[str, str] = {}
        self._started = 0.0

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Begin a new file. An open file is ended. Raises OSError if the file cannot be opened."""
        self.stop()
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115  # until stop()
        with self._lock:
            self._file, self._mark_cycles = file, mark_cycles
            self._pids, self._open = {"": 0}, {}
            self._started = time.time()
            # The wall clock at time 0, under Horovod's name. Tools that align files read it.
            epoch = {"start_time_since_epoch_in_micros": round(self._started * 1e6)}
            line = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "cycles"}}
            self._put("[\n" + json.dumps({**line, "args": {**line["args"], **epoch}}))  # type: ignore[dict-item]

    def stop(self) -> None:
        """Complete and close the file. Warns if this fails."""
        with self._lock:
            self._put("\n]\n")
            self._close()

    def cycle(self) -> None:
        """Record the beginning of a round of negotiation."""
        if self._file is not None and self._mark_cycles:
            with self._lock:
                self._write("i", "CYCLE_START", "", s="g")

    def announced(self, name: str, kind: str, rank: int, sent: float) -> None:
        """Record that ``rank`` announced a tensor, in a message sent at the wall clock ``sent``."""
        if self._file is None:
            return
        with self._lock:
            if name not in self._open:
                self._begin(name, f"NEGOTIATE_{kind}", sent)
            self._write("i", str(rank), name, sent, s="p")

    def enter(self, names: Iterable[str], phase: str) -> None:
        """End the open phases of the tensors and begin this phase."""
        if self._file is None:
            return
        now = time.time()
        with self._lock:
            for name in names:
                self._end(name, now)
                self._begin(name, phase, now)

    def leave(self, names: Iterable[str]) -> None:
        """End the open phases of the tensors."""
        if self._file is None:
            return
        now = time.time()
        with self._lock:
            for name in names:
                self._end(name, now)

    def _begin(self, name: str, phase: str, at: float) -> None:
        self._open[name] = phase
        self._write("B", phase, name, at)

    def _end(self, name: str, at: float) -> None:
        phase = self._open.pop(name, None)
        if phase is not None:
            self._write("E", phase, name, at)

    def _write(self, ph: str, event: str, name: str, at: float | None = None, **more: Any) -> None:
        if self._file is None:
            return
        pid = self._pids.get(name)
        if pid is None:
            pid = self._pids[name] = len(self._pids)
            self._line({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        since = (time.time() if at is None else at) - self._started
        micros = max(0, round(since * 1e6))
        self._line({"ph": ph, "name": event, "pid": pid, "tid": 0, "ts": micros, **more})

    def _line(self, event: dict[str, Any]) -> None:
        self._put(",\n" + json.dumps(event))

    def _put(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._close(error)

    def _close(self, failure: OSError | None = None) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            failure = failure or error
        if failure is not None:
            logger.warning("timeline %s was stopped early: %s", file.name, failure)
