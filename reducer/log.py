"""Logging set-up: stdlib ``logging`` to stderr, as key=value text or as JSON lines.

Daemon and client read ``REDUCER_DEBUG``: ``LEVEL`` or ``LEVEL:SUBSYSTEM,...``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

ROOT = "reducer"
# The names of the levels in REDUCER_DEBUG, as in NCCL_DEBUG.
DEBUG_LEVELS = {"warn": logging.WARNING, "info": logging.INFO, "trace": logging.DEBUG}
# Loggers below `reducer` in the daemon and below `reducer_client`; REDUCER_DEBUG sets both.
SUBSYSTEMS = (
    "acceptor", "admin", "auth", "lane", "lanes", "server", "join", "rounds", "horovod", "registry",
    "tables",
)  # fmt: skip


class Debug(NamedTuple):
    """The level for some subsystems; without ``subsystems``, for all."""

    level: int
    subsystems: tuple[str, ...]

    def apply(self, root: str) -> None:
        """Set the level of the logger ``root``, or of the subsystems' loggers below ``root``."""
        for name in [f"{root}.{each}" for each in self.subsystems] or [root]:
            logging.getLogger(name).setLevel(self.level)


def parse_debug(text: str) -> Debug | None:
    """Parse a value of REDUCER_DEBUG: None for "", ValueError for a bad value."""
    if not text.strip():
        return None
    level, _, names = text.strip().lower().partition(":")
    subsystems = tuple(name.strip() for name in names.split(",") if name.strip())
    if level not in DEBUG_LEVELS or not set(subsystems) <= set(SUBSYSTEMS):
        raise ValueError(
            f"expected {', '.join(DEBUG_LEVELS)}, or one of them with subsystems, such as "
            f"trace:lane,join; subsystems: {', '.join(SUBSYSTEMS)}"
        )
    return Debug(DEBUG_LEVELS[level], subsystems)


def unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's exception handler: logs the exception of a callback."""
    logging.getLogger(ROOT).error(
        "unhandled: %s", context.get("message"), exc_info=context.get("exception")
    )


class _Formatter(logging.Formatter):
    """Collects the fields of a record.

    The fields are time, level, logger, the fixed context, the record's ``about`` (job, run, rank,
    key, round, code), message and stack.
    """

    def __init__(self, context: Mapping[str, object]) -> None:
        super().__init__()
        self._context = dict(context)

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._context,
            **getattr(record, "about", {}),
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["stack"] = self.formatException(record.exc_info)
        return found


class TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in self._fields(record).items())


class JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _as_json(self._fields(record))


def formatter(form: str, context: Mapping[str, object]) -> logging.Formatter:
    """A formatter; ``form`` is text or json. Every line has the fields of ``context``."""
    return JsonFormatter(context) if form == "json" else TextFormatter(context)


def _quoted(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(letter in text for letter in ' "='):
        return text
    return _as_json(text)


def _as_json(value: object) -> str:
    """JSON on one line, without control characters for a terminal or any kind of line break."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


# The queue for a slow reader; a burst of state changes fits.
_QUEUED_LINES = 1_000
_LAST_WORDS_SECONDS = 1.0


class LineWriter(logging.Handler):
    """Writes lines to a descriptor on a thread of its own.

    Otherwise a stopped terminal, or a pipe that nobody reads, would block the event loop and so the
    reducer. A line that cannot be queued or written is dropped and counted.

    SimpleQueue instead of Queue: if memory runs out while a Queue releases its lock, the lock may
    stay locked for ever.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode(errors="replace")
            if self._lines.qsize() < _QUEUED_LINES:
                self._lines.put(line)
            else:
                self.dropped += 1
        except MemoryError:
            self.dropped += 1

    def close(self) -> None:
        """Write the queued lines for at most one second. The logging module calls this at exit."""
        self._lines.put(None)
        self._thread.join(_LAST_WORDS_SECONDS)
        super().close()

    def _write(self) -> None:
        goes_on = True
        while goes_on:
            try:
                goes_on = self._write_next()
            except Exception:  # no memory is left to count the line
                continue

    def _write_next(self) -> bool:
        """Write the next line; False after `close`."""
        line = self._lines.get()
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except Exception:
            self.dropped += 1
        return line is not None


_writer: LineWriter | None = None


def set_up(level: str, form: str, debug: str = "", **context: object) -> None:
    """Send the records of the logger ``reducer`` to stderr; ``form`` is text or json.

    ``debug`` has the syntax of REDUCER_DEBUG and overrides ``level``.
    """
    global _writer
    if _writer is not None:
        _writer.close()
    _writer = LineWriter(sys.stderr.fileno())
    _writer.setFormatter(formatter(form, context))
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [_writer]
    logger.setLevel(level.upper())
    logger.propagate = False
    wanted = parse_debug(debug)
    if wanted is not None:
        wanted.apply(ROOT)


def dropped_lines() -> int:
    """The number of lines that were dropped since `set_up`."""
    return _writer.dropped if _writer else 0


class RateLimit:
    """Admits one event per ``interval`` seconds and counts the suppressed events.

    After a pause it admits up to ``burst`` events at once.
    """

    def __init__(self, interval: float, burst: int = 1) -> None:
        self._interval = interval
        self._most_saved = (burst - 1) * interval
        self._next = 0.0
        self._held = 0

    def admit(self, now: float, cost: int = 1) -> int | None:
        """None if the event is suppressed, else the number suppressed since the last admitted one.

        An admitted event of ``cost`` n takes the place of n events; a suppressed one counts as one.
        """
        if now < self._next:
            self._held += 1
            return None
        held, self._held = self._held, 0
        self._next = max(self._next, now - self._most_saved) + cost * self._interval
        return held

    def hold(self, count: int) -> None:
        """Count ``count`` events as suppressed that the caller suppresses after `admit`."""
        self._held += count
