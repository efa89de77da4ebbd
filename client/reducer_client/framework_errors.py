"""Errors of a group that a framework turns into its own error, which has only the text."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from reducer_client.errors import ReducerError

_latest: BaseException | None = None


def remember(error: BaseException | None) -> None:
    """Keep the error that a framework is about to turn into its own; None: forget it."""
    global _latest
    _latest = error


@contextmanager
def raising() -> Generator[None]:
    """Raise the group's own error in place of the RuntimeError that torch makes of it.

        with reducer_client.torch.raising():
            loss.backward()

    Raises:
        ReducerError: a subclass, such as PeerLostError with the rank, if the error that left the
            block has the error's text. Other errors stay as they are.
    """
    try:
        yield
    except RuntimeError as error:
        cause = _latest
        if isinstance(error, ReducerError) or cause is None or str(cause) not in str(error):
            raise
        raise cause from error
    finally:
        remember(None)
