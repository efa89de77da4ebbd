"""The works that torch gets for collectives in progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Protocol, TypeGuard

import torch
import torch.distributed as dist

from reducer_client.errors import RoundTimeoutError
from reducer_client.torch.calls.callbacks import CallbackThreads
from reducer_client.torch.calls.futures import CallFuture, Context
from reducer_client.torch.calls.key_scopes import Scope
from reducer_client.torch.hierarchy.all_reduce import AllReduce
from reducer_client.torch.staging.transfer import Transfer


class Handle(Protocol):
    """The interface of ``reducer_client.Work`` that this module needs."""

    @property
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Any: ...
    def exception(self) -> Exception | None: ...


OnDone = Callable[[Any], None]
EndGroup = Callable[[str], None]
Submit = Callable[[OnDone | None], Handle]


class Receipt:
    """Whether the program knows how a synchronous call has ended."""

    given = False


class CallWork(dist.Work):
    """The work of one collective. Any thread may wait for it, any number of times.

    Args:
        outputs: the value of the future.
        limit: default timeout of ``wait`` in seconds; None means the group's timeout.
        devices, context: as for ``CallFuture``.
        finish: function that copies the result to the outputs. It runs once, after success.
        parts: works for which the current stream waits, too.
    """

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        scope: Scope,
        threads: CallbackThreads,
        finish: Callable[[], None] | None = None,
        limit: float | None = None,
        devices: Sequence[torch.device] = (),
        context: Context = nullcontext,
        parts: Sequence[CallWork] = (),
    ) -> None:
        super().__init__()
        self._parts = parts
        self.receipt: Receipt | None = None
        self._outputs = list(outputs)
        self._scope = scope
        self._threads = threads
        self._finish = finish
        self._limit = limit
        self._devices = devices
        self._context = context
        self._lock = threading.Lock()
        self._handle: Handle | None = None
        self._settled = False
        self._when_settled: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._future: CallFuture | None = None
        self._end_group: EndGroup | None = None

    def start(self, submit: Submit, end_group: EndGroup | None = None) -> CallWork:
        """Start a synchronous call, for which the caller waits at once.

        ``end_group`` is called if only this rank lacks the result, with the text of the timeout if
        a timeout is the cause. The group must end then, for the reason in interrupts.py.
        """
        self._end_group = end_group
        self._handle = submit(None)
        return self

    def start_notified(
        self, submit: Submit, ended: Callable[[], None], end_group: EndGroup | None = None
    ) -> CallWork:
        """Start an asynchronous call. A thread of the client completes it and calls ``ended``."""
        self._end_group = end_group

        def on_done(handle: Handle) -> None:
            try:
                self._on_done(handle)
            finally:
                ended()

        self._handle = submit(on_done)
        return self

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Return when the outputs have arrived. A timeout of 0 means the timeout of the call.

        Raises the error of the call, which is a ReducerError and thus a RuntimeError.
        """
        handle, seconds = self._started(), timeout.total_seconds()
        if _by_stream(handle):
            handle.wait(seconds or None)
            self._give_receipt()
            return True
        try:
            handle.wait(seconds or self._limit)
        except RoundTimeoutError as error:
            # A rank that came late would finish the call, and then be one behind us. (A hierarchy
            # ends by itself.)
            if not seconds and not isinstance(handle, AllReduce):
                self._lose(str(error))
            raise
        self._settle(handle)
        self._give_receipt()
        if self._error is not None:
            raise self._error
        for part in self._parts:
            part.wait()
        return True

    def join(self) -> None:
        """Let the host wait until the call has ended. Raises as `wait`."""
        handle = self._started()
        if _by_stream(handle):
            handle.join()
        self.wait()

    def _lose(self, timed_out: str) -> None:
        """End the group, because only this rank lacks the result and cannot get it any more."""
        if self._end_group is not None:
            self._end_group(timed_out)

    def when_settled(self, call: Callable[[], None]) -> None:
        """Let ``call`` run, on any thread, before the work shows that it is done."""
        with self._lock:
            if not self._settled:
                self._when_settled = call
                return
        call()

    def get_future(self) -> CallFuture:
        """A future for the list of outputs or the error."""
        self._give_receipt()
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = CallFuture(
                self._scope, self._threads, self._devices, self._context
            )
            settled = self._settled or _by_stream(self._handle)
        if settled:
            future.complete(self._outputs, self._error)
        return future

    @property
    def started(self) -> bool:
        """Whether the call has started, so that a thread may wait for it."""
        return self._handle is not None

    def is_completed(self) -> bool:
        """Whether the call has failed or its outputs have arrived."""
        handle = self._started()
        if not handle.done:
            return False
        self._settle(handle)
        self._give_receipt()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        """Let the current CUDA stream wait for the outputs; this thread too, as in `wait`.

        The method of torch lets the stream go on when the future is done, and the future of a CUDA
        call is done when the copy to the outputs has been queued.
        """
        self.wait()

    def _started(self) -> Handle:
        assert self._handle is not None
        return self._handle

    def _give_receipt(self) -> None:
        if self.receipt is not None:
            self.receipt.given = True

    def _on_done(self, handle: Handle) -> None:
        self._settle(handle)
        with self._lock:
            future = self._future
        if future is not None:
            future.complete(self._outputs, self._error)

    def _settle(self, handle: Handle) -> None:
        with self._lock:
            if self._settled:
                return
            error: Exception | None = None
            is_lost = False
            try:
                error = handle.exception()
                if error is None and self._finish is not None:
                    with torch.inference_mode():  # else its tensors could not be written to
                        self._finish()
            except Exception as failed:
                error, is_lost = failed, True
            if error is not None and _by_stream(handle):  # the program may have gone on
                is_lost = True
            self._error, self._settled, self._finish = error, True, None
            if self._when_settled is not None:
                self._when_settled()
        if is_lost:
            self._lose(str(error) if _by_stream(handle) else "")


def _by_stream(handle: Handle | None) -> TypeGuard[Transfer]:
    """Whether the program may use the outputs, in its stream, before the call has ended."""
    return isinstance(handle, Transfer) and handle.by_stream
