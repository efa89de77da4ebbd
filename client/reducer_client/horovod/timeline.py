"""A timeline of tensors, as viewers of Chrome traces, such as Perfetto, open it.

Rank 0 writes it: it sees the announcements of all ranks. Each tensor is a process of the trace.
``NEGOTIATE_*`` has an instant for each rank, at the time at which that rank sent its announcement
by its own clock, so the last one was late. Then follow ``QUEUE``, ``MEMCPY_IN_FUSION_BUFFER``,
``REDUCER_*`` and ``MEMCPY_OUT_FUSION_BUFFER``; ``CYCLE_START`` marks each round of negotiation.
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
    """Writes nothing before ``start`` and after ``stop``. Any thread may call it.

    A file that cannot be written is warned of and given up: no training ends by its timeline.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._mark_cycles = False
        self._pids: dict[str, int] = {}
        self._open: dict[str, str] = {}
        self._started = 0.0

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Begin a new file; one that is being written is ended. Raises OSError."""
        self.stop()
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115  # until stop()
        with self._lock:
            self._file, self._mark_cycles = file, mark_cycles
            self._pids, self._open = {"": 0}, {}
            self._started = time.time()
            # As Horovod names it, for tools that shift the times.
            epoch = {"start_time_since_epoch_in_micros": round(self._started * 1e6)}
            line = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "cycles"}}
            self._put("[\n" + json.dumps({**line, "args": {**line["args"], **epoch}}))  # type: ignore[dict-item]

    def stop(self) -> None:
        """End the file, which is complete and closed afterwards; a failure is warned of."""
        with self._lock:
            self._put("\n]\n")
            self._close()

    def cycle(self) -> None:
        """A round of negotiation begins."""
        if self._file is not None and self._mark_cycles:
            with self._lock:
                self._write("i", "CYCLE_START", "", s="g")

    def announced(self, name: str, kind: str, rank: int, sent: float) -> None:
        """``rank`` has announced the tensor in a message that it sent then, of the wall clock."""
        if self._file is None:
            return
        with self._lock:
            if name not in self._open:
                self._begin(name, f"NEGOTIATE_{kind}", sent)
            self._write("i", str(rank), name, sent, s="p")

    def enter(self, names: Iterable[str], phase: str) -> None:
        """The phase of the tensors that was open ends, and this one begins."""
        if self._file is None:
            return
        now = time.time()
        with self._lock:
            for name in names:
                self._end(name, now)
                self._begin(name, phase, now)

    def leave(self, names: Iterable[str]) -> None:
        """The tensors are done."""
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
            logger.warning("timeline %s ends before its time: %s", file.name, failure)
