"""Errors of the Horovod layer: ``HorovodInternalError`` and its subclasses."""

from __future__ import annotations

from reducer_client.errors import ReducerError

__all__ = ["DuplicateNameError", "HorovodInternalError", "from_reducer_error"]


class HorovodInternalError(ReducerError):
    """An operation failed, or is not possible here; ``reason`` says why.

    Horovod stays usable after ``"mismatch"`` (the ranks submitted different operations under one
    name, or a rank has joined), ``"usage"`` (a call that is not possible here) and ``"duplicate"``
    (`DuplicateNameError`). After the last two nothing was sent. ``"forked"`` means that this
    process is a forked child, which must call ``init`` itself.

    After every other reason Horovod has ended on this rank until ``shutdown`` and ``init``:
    ``"lost"``, ``"left"`` or ``"failed"`` (what happened to rank ``rank``), ``"unreachable"``,
    ``"timeout"``, ``"stalled"``, ``"internal"``, ``"closed"``, or the reason of another error of
    the group, such as ``"digest"`` or ``"integrity"``.
    """


class DuplicateNameError(HorovodInternalError, ValueError):
    """Another operation of this rank under the same name has not finished."""


def from_reducer_error(error: ReducerError) -> HorovodInternalError:
    """A HorovodInternalError with the same text and attributes. Raise it from ``error``."""
    if isinstance(error, HorovodInternalError):
        return error
    return HorovodInternalError(
        str(error), rank=error.rank, round=error.round, key=error.key, reason=error.reason
    )
