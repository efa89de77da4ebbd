"""Calls that wait. An interrupt in one of them ends Horovod on this rank (interrupts.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from typing import Any, ParamSpec, TypeVar

from reducer_client.horovod import context
from reducer_client.horovod.handles import Handle

P = ParamSpec("P")
T = TypeVar("T")


def ends_on_interrupt(call: Callable[P, T]) -> Callable[P, T]:
    """Decorator: an interrupt inside ``call`` ends Horovod on this rank.

    Other ranks may have the result, so a repeated call would be summed with their next one.
    """

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with context.current().end_on_interrupt:
            return call(*args, **kwargs)

    return guarded


def synchronous(start: Callable[P, Handle[T]]) -> Callable[P, T]:
    """Make the waiting twin of an ``*_async`` call: it has the same parameters."""

    @ends_on_interrupt
    @wraps(start)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return start(*args, **kwargs).wait()

    function: Any = call
    function.__signature__ = signature(start).replace(return_annotation=Signature.empty)
    function.__doc__ = (
        f"Call ``{function.__name__}``, wait, and return the result. The arguments are the same."
    )
    function.__name__ = function.__qualname__ = function.__name__.replace("_async", "")
    return call


@ends_on_interrupt
def synchronize(handle: Handle[Any]) -> Any:
    """Wait for an asynchronous operation and return its result.

    Raises HorovodInternalError if it failed.
    """
    return handle.wait()
