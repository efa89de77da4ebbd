"""Handles: what asynchronous calls return, and what ``poll`` and ``synchronize`` take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from reducer_client.horovod.errors import HorovodInternalError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """Something that is done at some time; ``wait`` returns its value or raises its error."""

    @property
    def done(self) -> bool: ...

    def wait(self) -> T_co: ...


class OperationHandle:
    """One operation of one tensor. Any thread may wait for it, any number of times."""

    def __init__(self, name: str, hurry: Callable[[], None]) -> None:
        self.name = name
        self._hurry = hurry
        self._finished = threading.Event()
        self._value: Any = None
        self._error: HorovodInternalError | None = None

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self) -> Any:
        """The result; raises HorovodInternalError if the operation failed."""
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

    def __init__(self, handles: Sequence[Handle[Any]]) -> None:
        self._handles = tuple(handles)

    @property
    def done(self) -> bool:
        return all(handle.done for handle in self._handles)

    def wait(self) -> list[Any]:
        return wait_all(self._handles)


class MappedHandle(Generic[T]):
    """A handle whose value is made from another one's by the thread that waits, once."""

    def __init__(self, handle: Handle[Any], function: Callable[[Any], T]) -> None:
        self._handle = handle
        self._function = function
        self._lock = threading.Lock()
        self._value: tuple[T] | None = None

    @property
    def done(self) -> bool:
        return self._handle.done

    def wait(self) -> T:
        value = self._handle.wait()
        with self._lock:
            if self._value is None:
                self._value = (self._function(value),)
        return self._value[0]


def wait_all(handles: Iterable[Handle[T]]) -> list[T]:
    """The values, once all are done.

    Raises the first error only then: nothing writes to arrays, or has their names, afterwards.
    """
    values: list[T] = []
    errors: list[HorovodInternalError] = []
    for handle in handles:
        try:
            values.append(handle.wait())
        except HorovodInternalError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return values


def poll(handle: Handle[Any]) -> bool:
    """Whether `synchronize` would return, or raise, at once."""
    return handle.done
