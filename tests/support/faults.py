"""Parts that fail at the worst moment."""

from __future__ import annotations

import logging


class UntoldError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise MemoryError("injected")


class FullDisk(logging.Handler):
    """Raises where the real handlers print: as where memory ends before one is called."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is full")
