"""Logging set-up: stdlib ``logging`` to stderr, as key=value text or as JSON lines."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

ROOT = "reducer"


def unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's exception handler: nothing that goes wrong in a callback is lost."""
    logging.getLogger(ROOT).error(
        "unhandled: %s", context.get("message"), exc_info=context.get("exception")
    )


class _Formatter(logging.Formatter):
    """Fields of one record: time, level, logger, the fixed context, message, stack."""

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
        return json.dumps(self._fields(record), ensure_ascii=False)


def _quoted(value: object) -> str:
    text = str(value)
    if text and not any(letter in text for letter in ' "=\n\r\t'):
        return text
    return json.dumps(text, ensure_ascii=False)


class _CountingHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic in stubs only
    """Drops a line that cannot be written (disk full, closed pipe), counts it, and serves on."""

    dropped = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        self.dropped += 1


_handler: _CountingHandler | None = None


def set_up(level: str, form: str, **context: object) -> None:
    """Send everything under the logger ``reducer`` to stderr, once; ``form``: text or json."""
    global _handler
    _handler = _CountingHandler(sys.stderr)
    _handler.setFormatter(JsonFormatter(context) if form == "json" else TextFormatter(context))
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [_handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def dropped_lines() -> int:
    """How many lines could not be written since `set_up`."""
    return _handler.dropped if _handler else 0


class RateLimit:
    """Lets one event through per ``interval`` seconds and says how many were held back."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = 0.0
        self._held = 0

    def admit(self, now: float) -> int | None:
        """The number of events suppressed since the last one let through, or None: stay silent."""
        if now < self._next:
            self._held += 1
            return None
        held, self._held = self._held, 0
        self._next = now + self._interval
        return held
