"""What an interrupt in the middle of a call does."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class EndOnInterrupt:
    """A block that ends the group where an interrupt leaves it (Ctrl-C, SystemExit).

    Law: the other ranks may have the call, or its result. If this rank repeated the call, the
    engine would number the repeat as the next round. The other ranks would match that round with
    their next call, and every later sum would be wrong without an error. So the group must end on
    this rank. An `Exception` passes: the code that raises one knows whether the call counts.

    Args:
        end: called with the interrupt, before it goes on. Called again for nested blocks.
    """

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[BaseException], object]) -> None:
        self._end = end

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            self._end(error)
