"""Torch futures whose callbacks may block and whose errors keep their text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch

from reducer_client.framework_errors import remember
from reducer_client.torch.calls.callbacks import CallbackThreads
from reducer_client.torch.calls.key_scopes import Scope, entered

Context = Callable[[], AbstractContextManager[Any]]
Callback = Callable[["CallFuture"], Any]


class CallFuture(torch.futures.Future[Any]):
    """A torch future that the client completes. Its Python callbacks run on their own threads.

    DistributedDataParallel reads the value in C++, which reports an exception object only as a
    failed cast to a tensor. So the value of a failed call is an object that raises the error when
    it is read.

    Args:
        devices: CUDA devices of the tensors in the value.
        context: function that returns the context in which the future is completed, such as the
            CUDA stream that consumers must wait for.
    """

    def __init__(
        self,
        scope: Scope,
        threads: CallbackThreads,
        devices: Sequence[torch.device] = (),
        context: Context = nullcontext,
    ) -> None:
        super().__init__(devices=list(devices))
        self._scope = scope
        self._threads = threads
        self._devices = devices
        self._context = context
        self._lock = threading.RLock()
        self._callbacks = 0
        self._completing = False

    def complete(self, value: Any, error: BaseException | None) -> None:
        """Complete the future with a value or an error. Further calls change nothing.

        Does not block: if there are Python callbacks, another thread runs them.
        """
        with self._lock:
            if self._completing:
                return
            self._completing = True
            if not self._callbacks:
                self._set(value, error)
                return
        self._threads.run(lambda: self._set(value, error))

    def then(self, callback: Callback) -> CallFuture:
        """A future for the value that the callback returns, or for the error that it raises."""
        scope = self._next_branch()
        child = CallFuture(scope, self._threads, self._devices)

        def run(done: CallFuture) -> None:
            try:
                value = callback(done)
            except BaseException as error:
                child._set(None, error)
            else:
                child._set(value, None)

        self._call_within(scope, run)
        return child

    def add_done_callback(self, callback: Callback) -> None:
        """As in torch. If the future is done, the callback runs at once, on this thread."""
        self._call_within(self._next_branch(), callback)

    def _next_branch(self) -> Scope:
        with self._lock:
            self._callbacks += 1
            return self._scope.branch(self._callbacks)

    def _call_within(self, scope: Scope, callback: Callback) -> None:
        def run(_: object) -> None:
            try:
                with entered(scope):
                    callback(self)
            finally:
                scope.end()

        scope.begin()
        try:
            with self._lock:
                if not self._completing:
                    super().add_done_callback(run)
                    return
        except BaseException:
            scope.end()  # the callback will not run
            raise
        super().add_done_callback(run)

    def _set(self, value: Any, error: BaseException | None) -> None:
        if error is not None:
            self._set_unwrap_func(_Failure.raise_)
            value = _Failure(error)
        with self._context():
            self.set_result(value)


class _Failure:
    """The value of a failed call. C++ reads it by its text or by pickling; both raise the error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def raise_(self) -> NoReturn:
        remember(self._error)
        raise self._error

    def __str__(self) -> str:
        self.raise_()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.raise_()
