"""Handles: what asynchronous calls return, and what ``poll`` and ``synchronize`` take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.interrupts import EndOnInterrupt


class Handle(Protocol):
    """Something that is done at some time; ``wait`` returns its value or raises its error."""

    end_on_interrupt: EndOnInterrupt

    @property
    def done(self) -> bool: ...

    def wait(self) -> Any: ...


class OperationHandle:
    """One operation of one tensor. Any thread may wait for it, any number of times."""

    def __init__(
        self, name: str, hurry: Callable[[], None], end_on_interrupt: EndOnInterrupt
    ) -> None:
        self.name = name
        self.end_on_interrupt = end_on_interrupt
        self._hurry = hurry
        self._finished = threading.Event()
        self._value: Any = None
        self._error: HorovodInternalError | None = None

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self) -> Any:
        """The result; raises HorovodInternalError if the operation failed.

        An interrupt ends Horovod: a synchronous call does not give the program the handle.
        """
        with self.end_on_interrupt:
            if not self._finished.is_set():
                self._hurry()
                self._finished.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def finish(self, value: Any) -> None:
        self._value = value
        self._finished.set()

    def fail(self, error: HorovodInternalError) -> None:
        """Nothing if it is done already."""
        if not self._finished.is_set():
            self._error = error
            self._finished.set()


class GroupHandle:
    """Several handles as one; its value is the list of theirs."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = tuple(handles)
        first = [handle.end_on_interrupt for handle in self._handles[:1]]
        self.end_on_interrupt = first[0] if first else EndOnInterrupt(lambda _: None)

    @property
    def done(self) -> bool:
        return all(handle.done for handle in self._handles)

    def wait(self) -> list[Any]:
        with self.end_on_interrupt:
            return wait_all(self._handles)


class MappedHandle:
    """A handle whose value is made from another one's by the thread that waits, once."""

    def __init__(self, handle: Handle, function: Callable[[Any], Any]) -> None:
        self.end_on_interrupt = handle.end_on_interrupt
        self._handle = handle
        self._function = function
        self._lock = threading.Lock()
        self._value: tuple[Any] | None = None

    @property
    def done(self) -> bool:
        return self._handle.done

    def wait(self) -> Any:
        with self.end_on_interrupt:
            value = self._handle.wait()
            with self._lock:
                if self._value is None:
                    self._value = (self._function(value),)
            return self._value[0]


def wait_all(handles: Iterable[Handle]) -> list[Any]:
    """The values, once all are done.

    Raises the first error only then: nothing writes to arrays, or has their names, afterwards.
    """
    values: list[Any] = []
    errors: list[HorovodInternalError] = []
    for handle in handles:
        try:
            values.append(handle.wait())
        except HorovodInternalError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return values


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return, or raise, at once."""
    return handle.done


def synchronize(handle: Handle) -> Any:
    """Wait for an asynchronous operation and return its result.

    Raises HorovodInternalError if it failed.
    """
    return handle.wait()
