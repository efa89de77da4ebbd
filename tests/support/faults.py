"""Parts that fail at the worst moment."""

from __future__ import annotations

import logging
import ssl
from typing import Any


class UntoldError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise MemoryError("injected")


class FullDisk(logging.Handler):
    """Raises where the real handlers print: as where memory ends before one is called."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is full")


def tls_failure(words: str) -> ssl.SSLError:
    """What the module ssl raises where OpenSSL fails of itself; ``words`` are OpenSSL's."""
    error = ssl.SSLError(ssl.SSL_ERROR_SSL, f"[SSL] {words} (_ssl.c:1006)")
    error.reason = ""
    return error


class Faulty:
    """A part that raises at the next use of ``where``, once."""

    def __init__(self, part: Any, where: str, error: Exception) -> None:
        self._part, self._where, self._error = part, where, error

    def __getattr__(self, name: str) -> Any:
        if name == self._where:
            self._where = ""
            raise self._error
        return getattr(self._part, name)
