"""Copies CUDA tensors through host memory: pinned buffers, a side stream, events.

Nothing here waits for the device but the stager thread: it waits for the copy to the host and hands
it in. The client's completer thread starts the copy back, on the side stream; whoever uses the
result waits for that copy on the device alone.
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

# The smallest buffer. Sizes are powers of two, so that buckets that change layout find one again;
# torch's own cache of pinned memory rounds to them, too.
_LEAST_BYTES = 1 << 20
# What lies idle beyond this goes back to torch, whose cache is everybody's: 32 buckets of DDP.
_IDLE_BYTES = 1 << 30

OnDone = Callable[[Any], None]


# submit(source, target, on_done) starts a collective on host tensors; one and the same in place.
Submit = Callable[..., object]


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


class PinnedPool:
    """Page-locked byte buffers, used again once the device has read them.

    Args:
        limit: bytes of buffers that are kept while nobody uses them.
        allocate: makes a buffer of so many bytes.
    """

    def __init__(
        self, limit: int = _IDLE_BYTES, allocate: Callable[[int], torch.Tensor] = _pinned
    ) -> None:
        self._limit = limit
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """A pinned uint8 tensor of at least ``nbytes``: of their class, or twice as large."""
        size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
        with self._lock:
            for fitting in (size, 2 * size):
                for index, (buffer, idle) in enumerate(self._free):
                    if buffer.numel() == fitting and _happened(idle):
                        del self._free[index]
                        return buffer
        return self._allocate(size)

    def give(self, buffer: torch.Tensor, idle: torch.cuda.Event) -> None:
        """Back to the pool, free when the event has happened. Above the limit the oldest go."""
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
    return bool(event.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped


class CudaStaging:
    """Copies tensors of one device to the host and back.

    Args:
        stager: of one thread, so that what is handed in first is submitted first.
    """

    def __init__(self, device: torch.device, stager: ThreadPoolExecutor | None = None) -> None:
        self.device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._pool = PinnedPool()
        self._stager = stager or ThreadPoolExecutor(1, thread_name_prefix="reducer-stager")
        if stager is None:
            weakref.finalize(self, self._stager.shutdown, wait=False)

    def on_side(self) -> AbstractContextManager[Any]:
        """The stream that results are copied on, as the current one."""
        return torch.cuda.stream(self._side)

    def start(
        self, source: Packing | None, target: Packing | None, submit: Submit, on_done: OnDone
    ) -> Transfer:
        """Bring ``source`` to the host, submit, and bring the result to ``target``.

        ``source is target`` for what is done in place. ``on_done`` is called with the transfer, on
        any thread, with the side stream as the current one.
        """
        transfer = Transfer(self, source, target, on_done)
        transfer.begin(self._side)
        self._stager.submit(transfer.stage, submit)
        return transfer

    def take(self, nbytes: int) -> torch.Tensor:
        """A pinned buffer."""
        with torch.inference_mode(False):  # buffers outlive the mode in which they are first needed
            return self._pool.take(nbytes)

    def give(self, buffer: torch.Tensor, idle: torch.cuda.Event) -> None:
        """A buffer that the device reads until the event."""
        self._pool.give(buffer, idle)


class Transfer:
    """One collective's copies to the host and back; the handle that a work waits for."""

    def __init__(
        self,
        staging: CudaStaging,
        source: Packing | None,
        target: Packing | None,
        on_done: OnDone,
    ) -> None:
        self._staging = staging
        self._source = source
        self._target = target
        self._on_done = on_done
        self._buffers: list[torch.Tensor] = []
        self._read = None if source is None else self._take(source)
        self._write = self._read
        if source is not target:
            self._write = None if target is None else self._take(target)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._returned = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._ended = threading.Event()
        self._error: Exception | None = None

    def begin(self, side: torch.cuda.Stream) -> None:
        """Start the copy to the host, after what the current stream does with the tensors."""
        side.wait_stream(torch.cuda.current_stream(self._staging.device))
        with torch.cuda.stream(side):
            if self._source is not None and self._read is not None:
                self._read.copy_(self._source.flat(), non_blocking=True)
            self._arrived.record(side)
        for packing in (self._source, self._target):
            for tensor in () if packing is None else packing.tensors:
                tensor.record_stream(side)

    def stage(self, submit: Submit) -> None:
        """On the stager thread."""
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
        copied: bool = self._returned.query()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self._error is not None or copied

    def wait(self, timeout: float | None = None) -> None:
        """Return when the current stream waits for the result; the host waits for the reducers."""
        if not self._ended.wait(timeout):
            raise RoundTimeoutError(f"not finished after {timeout} s", reason="timeout")
        if self._error is not None:
            raise self._error
        torch.cuda.current_stream(self._staging.device).wait_event(self._returned)

    def exception(self) -> Exception | None:
        """Why it failed; None if it did not, or is not done."""
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
        # In inference mode all tensors can be written to; outside of it, those made in it cannot.
        with torch.inference_mode(), self._staging.on_side():
            if self._target is not None and self._write is not None:
                _copy_back(self._write, self._target)
            self._returned.record()
        # After a failure the engine may still write into the buffers: they are not used again.
        for buffer in self._buffers:
            self._staging.give(buffer, self._returned)

    def _end(self, error: Exception | None) -> None:
        self._error = error
        self._ended.set()
        with self._staging.on_side():
            self._on_done(self)


def _copy_back(host: torch.Tensor, target: Packing) -> None:
    """Copy through one run on the device: strided tensors cannot be copied without waiting."""
    alone = target.alone()
    if alone is not None:
        alone.copy_(host, non_blocking=True)
    else:
        target.unpack(host.to(target.device, non_blocking=True))
