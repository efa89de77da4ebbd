"""The copies of one collective to the host and back, and the handle that a work waits for.

Each direction has its own stream, so that no copy waits for one of the other direction. A tensor
goes in slices: while one slice is on the network, the next is copied from the device, and the
result of the one before to the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from reducer_client.errors import RoundTimeoutError
from reducer_client.parts import Parts
from reducer_client.torch.staging.device import Device, Event
from reducer_client.torch.staging.pinned_pool import PinnedPool
from reducer_client.torch.tensors.packing import Packing

SLICE_BYTES = 4 << 20

OnDone = Callable[[Any], None]


class Submit(Protocol):
    """Starts a collective on flat host tensors; ``read is write`` if it is in place.

    ``parts`` is given only if not all of ``read`` holds values yet.
    """

    def __call__(
        self, read: Any, write: torch.Tensor, /, *, on_done: OnDone, parts: Parts = ...
    ) -> Any: ...


class Lanes:
    """The streams of a device, ``out`` to the host and ``back``, and its buffers on the host."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.out = device.new_stream()
        self.back = device.new_stream()
        self.buffers = PinnedPool(device.pinned)


class Transfer:
    """One collective. Refers to the tensors as long as the stream out may read them.

    Args:
        source, target: what is copied to the host and back; the same for a collective in place.
        on_done: called with the transfer when the call has ended, on any thread, with the stream
            back as the current stream.
        carried: dtype in which the values are copied and sent; by default their own.
        sliced: whether the call takes parts, in place.
    """

    def __init__(
        self,
        lanes: Lanes,
        source: Packing | None,
        target: Packing,
        on_done: OnDone,
        carried: torch.dtype | None = None,
        sliced: bool = False,
    ) -> None:
        self._lanes = lanes
        self._device = lanes.device
        self._source = source
        self._target = target
        self._on_done = on_done
        self._carried = carried or target.dtype
        self._slice = max(1, SLICE_BYTES // self._carried.itemsize) if sliced else 0
        self._buffers: list[torch.Tensor] = []
        self._write = self._take(target)
        self._read: torch.Tensor | None = self._write
        if source is not target:
            self._read = None if source is None else self._take(source)
        self._called = self._device.new_event()
        self._out: list[tuple[int, Event]] = []  # elements that are on the host after the event
        self._back = 0  # elements whose copy back is queued
        self._returned = self._device.new_event()
        self._ended = threading.Event()
        self._error: Exception | None = None

    def begin(self) -> None:
        """Queue the copies to the host, after the current stream's work on the tensors."""
        self._called.record(self._device.current_stream())
        if self._source is None or self._read is None:
            self._out = [(0, self._called)]
        else:
            self._lanes.out.wait_event(self._called)
            self._queue_out(self._source, self._read)

    def stage(self, submit: Submit) -> None:
        """Wait for the copies to the host and submit the collective. Runs on the stager thread."""
        try:
            (elements, event), *others = self._out
            event.synchronize()
            parts = {"parts": self._parts(elements)} if others else {}
            work = submit(self._read, self._write, on_done=self._return, **parts)
            for elements, event in others:
                event.synchronize()
                work.fill(elements)
        except Exception as error:
            self._end(error)

    @property
    def done(self) -> bool:
        """Whether the copy back has finished or the call has failed."""
        return self._ended.is_set() and (self._error is not None or self._returned.query())

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the reducers, then let the current stream wait for the copy back.

        Raises RoundTimeoutError after ``timeout`` seconds, or the error of the call.
        """
        if not self._ended.wait(timeout):
            raise RoundTimeoutError(
                f"a call on {self._target.device} has not been submitted or its result has not "
                f"arrived after {timeout:g} s",
                reason="timeout",
            )
        if self._error is not None:
            raise self._error
        self._device.current_stream().wait_event(self._returned)

    def exception(self) -> Exception | None:
        """The error of the call; None if it succeeded or is not done yet."""
        return self._error

    def _take(self, packing: Packing) -> torch.Tensor:
        nbytes = packing.numel * self._carried.itemsize
        with torch.inference_mode(False):  # buffers outlive the caller's inference mode
            buffer = self._lanes.buffers.take(nbytes)
        self._buffers.append(buffer)
        return buffer[:nbytes].view(self._carried)

    def _queue_out(self, source: Packing, read: torch.Tensor) -> None:
        flat: list[torch.Tensor] = []
        self._device.queue(self._lanes.out, lambda: flat.append(source.flat().to(read.dtype)))
        step = self._slice or max(1, read.numel())
        for start in range(0, max(1, read.numel()), step):
            end = min(read.numel(), start + step)
            self._queue_slice(read[start:end], flat, start)
            event = self._device.new_event()
            event.record(self._lanes.out)
            self._out.append((end, event))

    def _queue_slice(self, host: torch.Tensor, flat: list[torch.Tensor], start: int) -> None:
        def copy() -> None:
            host.copy_(flat[0][start : start + host.numel()], non_blocking=True)

        self._device.queue(self._lanes.out, copy)

    def _parts(self, filled: int) -> Parts:
        if self._target.alone() is None:  # unpacked at the end
            return Parts(filled)
        return Parts(filled, self._slice, self._queue_back)

    def _queue_back(self, arrived: int) -> None:
        """Queue the copy of the elements up to ``arrived`` that have not been copied yet.

        The copy need not wait for the program's stream: a result arrives after `stage` has seen
        that the stream had come to the call.
        """
        if arrived == self._back:
            return
        host, start = self._write[self._back : arrived], self._back
        self._device.queue(self._lanes.back, lambda: _copy_back(host, self._target, start))
        for tensor in self._target.tensors:
            self._device.keep(tensor, self._lanes.back)
        self._back = arrived

    def _return(self, work: Any) -> None:
        error: Exception | None = work.exception()
        if error is None:
            try:
                self._queue_back(self._write.numel())
                self._returned.record(self._lanes.back)
            except Exception as failed:
                error = failed
        if error is None:  # after a failure the engine may still write into the buffers
            for buffer in self._buffers:
                self._lanes.buffers.give(buffer, self._returned)
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._error = error
        self._ended.set()
        with self._device.on(self._lanes.back):
            self._on_done(self)


def _copy_back(host: torch.Tensor, target: Packing, start: int) -> None:
    # Outside of inference mode, tensors made in inference mode cannot be written to.
    with torch.inference_mode():
        alone = target.alone()
        if alone is not None and alone.dtype is host.dtype:
            alone[start : start + host.numel()].copy_(host, non_blocking=True)
            return
        # Through a flat tensor: a copy to other dtypes or to strided tensors would block the host.
        flat = host.to(target.device, non_blocking=True)
        if alone is not None:
            alone[start : start + host.numel()].copy_(flat)
        else:
            target.unpack(flat.to(target.dtype))
