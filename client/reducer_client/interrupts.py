"""Ends a group if an interrupt leaves a call unfinished."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType, TracebackType


class _Outermost(threading.local):
    """The frame of each thread's outermost open block, for as long as the block is open."""

    frame: FrameType | None = None


class EndOnInterrupt:
    """A context manager that ends the group if an interrupt leaves the block.

    Interrupts are KeyboardInterrupt (Ctrl-C), SystemExit and whatever a signal handler raises, such
    as the TimeoutError of a handler of SIGALRM.

    Law: other ranks may have the interrupted call or its result. If this rank repeated the call,
    the engine would number the repeat as the next round. The other ranks would match that round
    with their next call, and every later sum would be wrong without an error. So the group must end
    on this rank. Other errors do not end the group: the code that raises them knows whether the
    call counts.

    The interpreter runs signal handlers at the entry of ``__exit__`` too, so an interrupt can leave
    a block unseen. The thread's next block finds that one still noted and ends the group then.

    Args:
        end: function that ends the group. It gets the interrupt, and is called once per nested
            block.
    """

    __slots__ = ("_end", "_outermost")

    def __init__(self, end: Callable[[BaseException], object]) -> None:
        self._end = end
        self._outermost = _Outermost()

    def __enter__(self) -> None:
        frame, outermost = sys._getframe(1), self._outermost.frame
        if outermost is not None:
            if _is_running(outermost, frame):
                return
            self._end(KeyboardInterrupt("an interrupt ended an earlier call of this thread"))
        self._outermost.frame = frame

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and _is_interrupt(error, traceback):
            self._end(error)
        if self._outermost.frame is sys._getframe(1):
            self._outermost.frame = None


def _is_interrupt(error: BaseException, traceback: TracebackType | None) -> bool:
    if not isinstance(error, Exception):
        return True
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    # The first frame is the block's own, which may be a handler that makes a call.
    inner = traceback.tb_next if traceback is not None else None
    while inner is not None and inner.tb_frame.f_code not in handlers:
        inner = inner.tb_next
    return inner is not None


def _code(handler: object) -> CodeType | None:
    """The code that runs first when a signal handler written in Python is called."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if callable(function) and not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def _is_running(frame: FrameType, inner: FrameType | None) -> bool:
    """Whether a frame is on the stack below another frame of the same thread, or is that frame."""
    while inner is not None and inner is not frame:
        inner = inner.f_back
    return inner is not None
