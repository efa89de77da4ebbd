"""Writes the phases of each round on a lane to a file in Chrome's trace format (for Perfetto).

Times begin with the wall clock at the opening of the file, and continue with the monotonic clock.
Files of one machine therefore agree exactly, files of several machines as well as their clocks do.
The file is an array whose end may be missing: each write ends with a whole event unless the process
is killed in it. The lane's event loop writes the file, so the folder must be on a local disk: a
disk that hangs would stop the lane.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import time
from collections import OrderedDict
from itertools import count
from pathlib import Path
from typing import Any, Final

from reducer.core.surface.events import Traced

# 60,000 rounds or more. Viewers become slow only far beyond the files of a few lanes.
MAX_BYTES: Final = 32 << 20
# Keys with tracks. The key that was traced longest ago is forgotten, and gets a new track later.
MAX_TRACED_KEYS: Final = 4_096
# Tracks of one key. The last track takes all rounds that overlap with more rounds than that.
MAX_TRACKS: Final = 64
# Sorts lanes after the ranks, which the client's files number from 0.
_SORT_AFTER_RANKS: Final = 10_000
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Timeline:
    """The file of one lane of the daemon `parent`; raises OSError if it cannot be made."""

    def __init__(self, folder: str, parent: int, lane: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        host = socket.gethostname()
        stem = f"reducer-{re.sub(r'[^0-9A-Za-z._]', '-', host)}-{parent}-lane{lane}"
        self.path, self._fd = _fresh(folder, stem)
        self._offset = time.time() - time.monotonic()
        # By job and key, the most recently traced last. Rounds of one key that overlap have
        # different tracks: (number, free from).
        self._tracks: OrderedDict[tuple[str, str], list[tuple[int, int]]] = OrderedDict()
        self._last_track = 0
        self._written = 0
        self._lines: list[str] = []
        self._metadata("process_name", 0, name=f"reducer {host} {parent} lane {lane}")
        self._metadata("process_sort_index", 0, sort_index=_SORT_AFTER_RANKS + lane)

    def add(self, round_: Traced) -> None:
        """Add a round. Its phases follow one another and add up to the round."""
        wait = round_.wait
        opened, since, until, all_in, ended = map(
            self._micros,
            (round_.opened_at, wait.since, wait.until, round_.all_in_at, round_.ended_at),
        )
        track = self._track(round_.job, round_.key, opened, ended)
        self._slice(
            "round", track, opened, ended, job=round_.job, round=round_.round, bytes=round_.bytes,
            last_rank=wait.rank, waited_us=until - since,
        )  # fmt: skip
        self._slice("collecting", track, opened, since)
        self._slice(f"waiting for rank {wait.rank}", track, since, until)
        self._slice("collecting", track, until, all_in)
        self._slice("summing", track, all_in, ended)

    def flush(self) -> None:
        """Write the added events. Raises OSError, with EFBIG if the file is full."""
        if not self._lines:
            return
        data = ((",\n" if self._written else "[\n") + ",\n".join(self._lines)).encode()
        self._lines.clear()
        if self._written + len(data) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_BYTES:,} bytes")
        self._write(data)

    def close(self) -> None:
        """Write the rest if possible, and close the file."""
        with contextlib.suppress(OSError):
            self.flush()
        with contextlib.suppress(OSError):
            self._write(b"\n]\n")
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        """Write all of the text, or nothing if the disk is full."""
        rest = data
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._written)
            raise
        self._written += len(data)

    def _micros(self, moment: float) -> int:
        return round((self._offset + moment) * 1e6)

    def _track(self, job: str, key: str, begin: int, end: int) -> int:
        tracks = self._tracks.setdefault((job, key), [])
        self._tracks.move_to_end((job, key))
        if len(self._tracks) > MAX_TRACED_KEYS:
            self._tracks.popitem(last=False)
        for index, (number, free_from) in enumerate(tracks):
            if free_from <= begin:
                tracks[index] = (number, end)
                return number
        if len(tracks) >= MAX_TRACKS:
            return tracks[-1][0]
        self._last_track += 1
        tracks.append((self._last_track, end))
        more = f" ({len(tracks)})" if len(tracks) > 1 else ""
        self._metadata("thread_name", self._last_track, name=f"{job}: {key}{more}")
        return self._last_track

    def _metadata(self, what: str, track: int, **args: Any) -> None:
        self._event({"ph": "M", "name": what, "pid": self._pid, "tid": track, "args": args})

    def _slice(self, name: str, track: int, begin: int, end: int, **args: Any) -> None:
        if end > begin or args:
            event: dict[str, Any] = {"ph": "X", "name": name, "pid": self._pid, "tid": track}
            event |= {"ts": begin, "dur": end - begin}
            self._event(event | ({"args": args} if args else {}))

    def _event(self, event: dict[str, Any]) -> None:
        self._lines.append(json.dumps(event, separators=(",", ":")))


def _fresh(folder: str, stem: str) -> tuple[str, int]:
    """Create and open a new file."""
    for number in count(1):
        path = os.path.join(folder, stem + (f"-{number}" if number > 1 else "") + ".json")
        try:
            return path, os.open(path, _FLAGS, 0o644)
        except FileExistsError:
            continue
    raise AssertionError("unreachable")
