"""Errors of the Horovod layer: ``HorovodInternalError`` and its subclasses."""

from __future__ import annotations

from reducer_client.errors import ReducerError

__all__ = ["DuplicateNameError", "HorovodInternalError", "from_reducer_error"]


class HorovodInternalError(ReducerError):
    """A collective operation failed on all ranks that take part in it.

    ``reason`` is ``"mismatch"`` where the ranks submitted different things under one name, or one
    of them has joined: then Horovod works on. Otherwise it has ended on this rank (``"lost"``,
    ``"left"``, ``"failed"``: the rank ``rank`` has; ``"stalled"``; ``"closed"``) until ``shutdown``
    and ``init``. ``"usage"`` is a call that cannot work here, and has changed nothing.
    """


class DuplicateNameError(HorovodInternalError, ValueError):
    """The name belongs to an operation of this rank that is not finished."""


def from_reducer_error(error: ReducerError) -> HorovodInternalError:
    """The same text and attributes, as a HorovodInternalError; raise it from ``error``."""
    if isinstance(error, HorovodInternalError):
        return error
    return HorovodInternalError(
        str(error), rank=error.rank, round=error.round, key=error.key, reason=error.reason
    )
