"""Copies CUDA tensors through host memory, with pinned buffers, a side stream and events.

Only the stager thread waits for the device: it waits for the copy to the host and then submits the
collective. The client's completer thread starts the copy back on the side stream. Consumers of the
result wait for that copy on the device only.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch

from reducer_client.errors import RoundTimeoutError
from reducer_client.torch.tensors.packing import Packing

# Size of the smallest buffer. Sizes are powers of two, so that a bucket of changed size finds a
# free buffer. Torch's cache of pinned memory also rounds up to powers of two.
_LEAST_BYTES = 1 << 20
# Idle buffers above this total, which is 32 buckets of DDP, return to torch's shared cache.
_IDLE_BYTES = 1 << 30

OnDone = Callable[[Any], None]


# submit(source, target, on_done) starts a collective on host tensors; ``source is target`` if in
# place.
Submit = Callable[..., object]


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


class PinnedPool:
    """Page-locked byte buffers, reused when the device has read them.

    Args:
        limit: total bytes of idle buffers to keep.
        allocate: function that makes a buffer of a number of bytes.
    """

    def __init__(
        self, limit: int = _IDLE_BYTES, allocate: Callable[[int], torch.Tensor] = _pinned
    ) -> None:
        self._limit = limit
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """A pinned uint8 tensor of at least ``nbytes``, of the next power of two or twice that."""
        size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
        with self._lock:
            for fitting in (size, 2 * size):
                for index, (buffer, idle) in enumerate(self._free):
                    if buffer.numel() == fitting and _happened(idle):
                        del self._free[index]
                        return buffer
        return self._allocate(size)

    def give(self, buffer: torch.Tensor, idle: torch.cuda.Event) -> None:
        """Return a buffer, which is free when the event ``idle`` has happened.

        Above the limit the oldest free buffers are dropped.
        """
        with self._lock:
            self._free.append((buffer, idle))
            surplus = sum(buffer.numel() for buffer, _ in self._free) - self._limit
            kept = []
            for entry in self._free:
                if surplus > 0 and _happened(entry[1]):
                    surplus -= entry[0].numel()
                else:
                    kept.append(entry)
            self._free = kept


def _happened(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]  # not annotated in torch


class CudaStaging:
    """Copies tensors of one device to the host and back.

    Args:
        stager: executor with one thread, which submits collectives in the order of ``start``.
    """

    def __init__(self, device: torch.device, stager: ThreadPoolExecutor | None = None) -> None:
        self.device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # not annotated in torch
        self.pool = PinnedPool()
        self._stager = stager or ThreadPoolExecutor(1, thread_name_prefix="reducer-stager")
        if stager is None:
            weakref.finalize(self, self._stager.shutdown, wait=False)

    def on_side(self) -> AbstractContextManager[Any]:
        """Context in which the side stream, on which results are copied, is the current stream."""
        return torch.cuda.stream(self._side)

    def start(
        self, source: Packing | None, target: Packing, submit: Submit, on_done: OnDone
    ) -> Transfer:
        """Copy ``source`` to the host, submit the collective, and copy the result to ``target``.

        ``source is target`` for a collective in place. ``on_done`` is called with the transfer, on
        any thread, with the side stream as the current stream.
        """
        transfer = Transfer(self, source, target, on_done)
        transfer.begin(self._side)
        self._stager.submit(transfer.stage, submit)
        return transfer

    def take(self, nbytes: int) -> torch.Tensor:
        """A pinned buffer of at least ``nbytes``."""
        with torch.inference_mode(False):  # buffers outlive the caller's inference mode
            return self.pool.take(nbytes)


class Transfer:
    """The copies of one collective to the host and back, and the handle that a work waits for."""

    def __init__(
        self,
        staging: CudaStaging,
        source: Packing | None,
        target: Packing,
        on_done: OnDone,
    ) -> None:
        self._staging = staging
        self._source = source
        self._target = target
        self._on_done = on_done
        self._buffers: list[torch.Tensor] = []
        self._write = self._take(target)
        self._read: torch.Tensor | None = self._write
        if source is not target:
            self._read = None if source is None else self._take(source)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._returned = torch.cuda.Event()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._ended = threading.Event()
        self._error: Exception | None = None

    def begin(self, side: torch.cuda.Stream) -> None:
        """Start the copy to the host, ordered after the current stream's work on the tensors."""
        side.wait_stream(torch.cuda.current_stream(self._staging.device))
        with torch.cuda.stream(side):
            if self._source is not None and self._read is not None:
                self._read.copy_(self._source.flat(), non_blocking=True)
            self._arrived.record(side)
        for packing in (self._source, self._target):
            for tensor in () if packing is None else packing.tensors:
                tensor.record_stream(side)

    def stage(self, submit: Submit) -> None:
        """Wait for the copy to the host and submit the collective. Runs on the stager thread."""
        try:
            self._arrived.synchronize()
            submit(self._read, self._write, self._return)
        except Exception as error:
            self._end(error)

    @property
    def done(self) -> bool:
        """Whether the copy back has finished or the call has failed."""
        if not self._ended.is_set():
            return False
        copied: bool = self._returned.query()  # type: ignore[no-untyped-call]  # not annotated in torch
        return self._error is not None or copied

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the reducers, then let the current stream wait for the copy back.

        Raises RoundTimeoutError after ``timeout`` seconds, or the error of the call.
        """
        if not self._ended.wait(timeout):
            raise RoundTimeoutError(
                f"a call on {self._staging.device} has not been submitted or its result has not "
                f"arrived after {timeout:g} s",
                reason="timeout",
            )
        if self._error is not None:
            raise self._error
        torch.cuda.current_stream(self._staging.device).wait_event(self._returned)

    def exception(self) -> Exception | None:
        """The error of the call; None if it succeeded or is not done yet."""
        return self._error

    def _take(self, packing: Packing) -> torch.Tensor:
        nbytes = packing.numel * packing.dtype.itemsize
        buffer = self._staging.take(nbytes)
        self._buffers.append(buffer)
        return buffer[:nbytes].view(packing.dtype)

    def _return(self, work: Any) -> None:
        error: Exception | None = work.exception()
        if error is None:
            try:
                self._start_back()
            except Exception as failed:
                error = failed
        self._end(error)

    def _start_back(self) -> None:
        # Outside of inference mode, tensors made in inference mode cannot be written to.
        with torch.inference_mode(), self._staging.on_side():
            _copy_back(self._write, self._target)
            self._returned.record()
        # Reached only after success. After a failure the engine may still write into the buffers.
        for buffer in self._buffers:
            self._staging.pool.give(buffer, self._returned)

    def _end(self, error: Exception | None) -> None:
        self._error = error
        self._ended.set()
        with self._staging.on_side():
            self._on_done(self)


def _copy_back(host: torch.Tensor, target: Packing) -> None:
    """Copy through a flat device tensor, because copies to strided tensors would block the host."""
    alone = target.alone()
    if alone is not None:
        alone.copy_(host, non_blocking=True)
    else:
        target.unpack(host.to(target.device, non_blocking=True))
