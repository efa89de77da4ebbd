"""Handles, which asynchronous calls return and ``poll`` and ``synchronize`` take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from reducer_client.horovod.errors import HorovodInternalError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """An operation in progress. ``wait`` returns its value or raises its error."""

    @property
    def done(self) -> bool: ...

    def wait(self) -> T_co: ...


class OperationHandle:
    """An operation on one tensor. Any thread may wait for it, any number of times."""

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
        """Wait for the result and return it. Raises HorovodInternalError if the call failed."""
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
        """Set the error, unless the operation is done."""
        if not self._finished.is_set():
            self._error = error
            self._finished.set()


class GroupHandle:
    """Several handles as one. Its value is the list of their values."""

    def __init__(self, handles: Sequence[Handle[Any]]) -> None:
        self._handles = tuple(handles)

    @property
    def done(self) -> bool:
        return all(handle.done for handle in self._handles)

    def wait(self) -> list[Any]:
        return wait_all(self._handles)


class MappedHandle(Generic[T]):
    """A handle whose value is a function of another handle's value, computed once."""

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
    """Wait for all handles and return their values.

    Raises the first error after all operations are done, so that no operation still writes to
    arrays or uses its name.
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
    """Whether `synchronize` would return or raise at once."""
    return handle.done
