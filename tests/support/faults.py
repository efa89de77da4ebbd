"""Objects that fail when a test wants them to."""

from __future__ import annotations

import logging
import ssl
from typing import Any


class UntoldError(Exception):
    """An error whose ``str()`` raises."""

    def __str__(self) -> str:
        raise MemoryError("injected")


class FullDisk(logging.Handler):
    """A log handler that raises in ``emit``, as if memory ran out before a real handler ran."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is full")


def tls_failure(words: str) -> ssl.SSLError:
    """The error of the module ssl for an internal failure of OpenSSL with the text ``words``."""
    error = ssl.SSLError(ssl.SSL_ERROR_SSL, f"[SSL] {words} (_ssl.c:1006)")
    error.reason = ""
    return error


class Faulty:
    """An object that raises once, at the next use of ``where``."""

    def __init__(self, part: Any, where: str, error: Exception) -> None:
        self._part, self._where, self._error = part, where, error

    def __getattr__(self, name: str) -> Any:
        if name == self._where:
            self._where = ""
            raise self._error
        return getattr(self._part, name)
