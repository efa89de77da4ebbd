"""Logging set-up: stdlib ``logging`` to stderr, as key=value text or as JSON lines.

``REDUCER_DEBUG``, of daemon and client alike: ``LEVEL`` or ``LEVEL:SUBSYSTEM,...``.
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
# What REDUCER_DEBUG calls them, as NCCL_DEBUG does.
DEBUG_LEVELS = {"warn": logging.WARNING, "info": logging.INFO, "trace": logging.DEBUG}
# Loggers below `reducer` in the daemon, and below `reducer_client`: one variable is for both.
SUBSYSTEMS = ("acceptor", "admin", "auth", "lane", "lanes", "server", "join", "rounds", "horovod")


class Debug(NamedTuple):
    """What is to be logged in more (or less) detail; no ``subsystems``: all."""

    level: int
    subsystems: tuple[str, ...]

    def apply(self, root: str) -> None:
        """To the logger ``root``, or to those of the subsystems below it."""
        for name in [f"{root}.{each}" for each in self.subsystems] or [root]:
            logging.getLogger(name).setLevel(self.level)


def parse_debug(text: str) -> Debug | None:
    """None for ""; ValueError for what is no value of REDUCER_DEBUG."""
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
    """The event loop's exception handler: nothing that goes wrong in a callback is lost."""
    logging.getLogger(ROOT).error(
        "unhandled: %s", context.get("message"), exc_info=context.get("exception")
    )


class _Formatter(logging.Formatter):
    """Fields of one record: time, level, logger, the fixed context, what it is about (job, run,
    rank, key, round, code), message, stack."""

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
    """``form``: text or json; every line has the fields of ``context``."""
    return JsonFormatter(context) if form == "json" else TextFormatter(context)


def _quoted(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(letter in text for letter in ' "='):
        return text
    return _as_json(text)


def _as_json(value: object) -> str:
    """One line, of which no letter does anything to a terminal, or ends the line for anybody."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


# Lines kept for a reader that is slow; a burst of state changes fits, and no more.
_QUEUED_LINES = 1_000
_LAST_WORDS_SECONDS = 1.0


class LineWriter(logging.Handler):
    """Writes lines to a descriptor on a thread of its own.

    A terminal that is stopped, or a pipe that nobody reads, would else stop the event loop, and
    with it the reducer. A line that cannot be kept or written is dropped and counted.

    The lock of a `queue.Queue` may stay taken for ever where memory ends while it is given back.
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
        """Write what is queued, for a second at most; the logging module does so at exit."""
        self._lines.put(None)
        self._thread.join(_LAST_WORDS_SECONDS)
        super().close()

    def _write(self) -> None:
        goes_on = True
        while goes_on:
            try:
                goes_on = self._write_next()
            except Exception:  # there is no memory to count it with
                continue

    def _write_next(self) -> bool:
        """False at the end."""
        line = self._lines.get()
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except Exception:
            self.dropped += 1
        return line is not None


_writer: LineWriter | None = None


def set_up(level: str, form: str, debug: str = "", **context: object) -> None:
    """Send everything under the logger ``reducer`` to stderr; ``form``: text or json.

    ``debug``, as in REDUCER_DEBUG, wins over ``level``.
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
    """How many lines could not be written since `set_up`."""
    return _writer.dropped if _writer else 0


class RateLimit:
    """Lets one event through per ``interval`` seconds and says how many were held back.

    After a rest, ``burst`` of them at once.
    """

    def __init__(self, interval: float, burst: int = 1) -> None:
        self._interval = interval
        self._most_saved = (burst - 1) * interval
        self._next = 0.0
        self._held = 0

    def admit(self, now: float, cost: int = 1) -> int | None:
        """The number of events suppressed since the last one let through, or None: stay silent.

        An event may cost as much as several.
        """
        if now < self._next:
            self._held += 1
            return None
        held, self._held = self._held, 0
        self._next = max(self._next, now - self._most_saved) + cost * self._interval
        return held

    def hold(self, count: int) -> None:
        """Count events that were let through here and are suppressed all the same."""
        self._held += count
