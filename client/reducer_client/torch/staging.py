"""CUDA tensors on their way through host memory: pinned buffers, a side stream, events.

The hook never waits for the device. A stager thread waits for the copy to the host and submits it;
the client's completer thread starts the copy back, on the side stream, and completes the future
there, so that its consumers wait for that copy on the device alone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch

from reducer_client.work import Work

OnDone = Callable[[Work[Any]], None]
TensorFuture = torch.futures.Future[torch.Tensor]

# Buffers are taken by size class, so that buckets that change layout find one again.
_GRANULE = 1 << 20


class Submit(Protocol):
    """Starts the reduction of a host tensor in place; ``on_done`` runs on the completer thread."""

    def __call__(self, host: torch.Tensor, on_done: OnDone) -> object: ...


class PinnedPool:
    """Page-locked byte buffers, used again once the device has read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """A pinned uint8 tensor of at least ``nbytes``."""
        size = max(1, -(-nbytes // _GRANULE)) * _GRANULE
        with self._lock:
            for index, (buffer, idle) in enumerate(self._free):
                done: bool = idle.query()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                if buffer.numel() == size and done:
                    del self._free[index]
                    return buffer
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def give(self, buffer: torch.Tensor, idle: torch.cuda.Event) -> None:
        """Back to the pool; it is free when the event has happened."""
        with self._lock:
            self._free.append((buffer, idle))


class CudaStaging:
    """What one state needs for one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._pool = PinnedPool()
        # One thread: what is handed in first is submitted first.
        self._stager = ThreadPoolExecutor(1, thread_name_prefix="reducer-stager")
        weakref.finalize(self, self._stager.shutdown, wait=False)

    def reduce(
        self, tensor: torch.Tensor, submit: Submit, on_error: Callable[[Exception], None]
    ) -> TensorFuture:
        """Reduce a CUDA tensor in place; failures are raised by the future's last callback."""
        return _Transfer(self._device, self._side, self._pool, tensor, on_error).start(
            self._stager, submit
        )


class _Transfer:
    """One tensor there and back."""

    def __init__(
        self,
        device: torch.device,
        side: torch.cuda.Stream,
        pool: PinnedPool,
        tensor: torch.Tensor,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._device = device
        self._side = side
        self._pool = pool
        self._tensor = tensor
        self._on_error = on_error
        self._error: Exception | None = None
        nbytes = tensor.numel() * tensor.element_size()
        self._buffer = pool.take(nbytes)
        self._host = self._buffer[:nbytes].view(tensor.dtype)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._future: TensorFuture = torch.futures.Future(devices=[device])

    def start(self, stager: ThreadPoolExecutor, submit: Submit) -> TensorFuture:
        # The bucket is still being written on the stream of autograd.
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            self._host.copy_(self._tensor.view(-1), non_blocking=True)
            self._arrived.record(self._side)
        self._tensor.record_stream(self._side)
        stager.submit(self._stage, submit)
        return self._future.then(self._finish)

    def _stage(self, submit: Submit) -> None:
        try:
            self._arrived.synchronize()
            submit(self._host, self._return)
        except Exception as error:
            self._complete(error)

    def _return(self, work: Work[Any]) -> None:
        error: Exception | None = work.exception()
        if error is None:
            try:
                with torch.cuda.stream(self._side):
                    self._tensor.view(-1).copy_(self._host, non_blocking=True)
                    idle = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                    idle.record(self._side)
                # After a failure the engine may still write into the buffer: it is not used again.
                self._pool.give(self._buffer, idle)
            except Exception as failed:
                error = failed
        self._complete(error)

    def _complete(self, error: Exception | None) -> None:
        self._error = error
        # The future records an event on the current stream of each device of its value.
        with torch.cuda.stream(self._side):
            self._future.set_result(self._tensor)

    def _finish(self, _: TensorFuture) -> torch.Tensor:
        if self._error is not None:
            self._on_error(self._error)
            raise self._error
        return self._tensor
