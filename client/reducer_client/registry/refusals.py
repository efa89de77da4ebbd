"""Turns the errors of `reducer.registry` into the client's."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from reducer.wire import errors as wire
from reducer_client.errors import QuotaExceededError


@contextmanager
def client_errors() -> Generator[None]:
    """Raise QuotaExceededError for what is above a limit."""
    try:
        yield
    except wire.QuotaError as error:
        raise QuotaExceededError(str(error)) from None
