"""The copies of one collective to the host and back, and the handle that a work waits for.

Each direction has its own stream, so that no copy waits for one of the other direction. A tensor
goes in slices: while one slice is on the network, the next is copied from the device, and the
result of the one before to the device.

Who waits for the result:
 - The host: `wait` lets its thread sleep until the result is in host memory, and then lets the
   current stream wait for the copy back. An error is raised by `wait`.
 - With ``Way.by_stream``, only the current stream, as with NCCL. `wait` returns at once. All work
   of the device has been queued before: the copies out, a wait for the gate, the copy back. From
   then on the device and the client's engine take turns by ``DeviceWords``, without a call of the
   device and without the interpreter, since a program that waits for the device may hold either. A
   failed call makes the result NaN; whoever is told of its end must end the group, so that every
   later call raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from reducer_client.errors import RoundTimeoutError
from reducer_client.parts import DeviceWords, Parts
from reducer_client.torch.staging.device import Device, Event
from reducer_client.torch.staging.pinned_pool import PinnedPool
from reducer_client.torch.tensors.packing import Packing

SLICE_BYTES = 4 << 20

OnDone = Callable[[Any], None]


# submit(read, write, on_done=) starts a collective on flat host tensors; ``read is write`` if it is
# in place. If not all of ``read`` holds values yet, also parts= or words= is given.
Submit = Callable[..., Any]


@dataclass(frozen=True)
class Way:
    """How the values of a call go to the host and back.

    Attributes:
        carried: dtype in which they are copied and sent; None means their own.
        sliced: whether the call takes them in slices; only in place.
        by_stream: whether only the current stream waits for the result. For floating-point numbers
            of a call that takes words.
    """

    carried: torch.dtype | None = None
    sliced: bool = False
    by_stream: bool = False


class Words:
    """The two words of a call, in a page of their own and in different cache lines."""

    BYTES = 4096

    def __init__(self, page: torch.Tensor) -> None:
        self.page = page
        numbers = page[: self.BYTES].view(torch.int32)
        self.slices, self.gate = numbers[:1].zero_(), numbers[16:17].zero_()


class Lanes:
    """The streams of a device, ``out`` to the host and ``back``, and its memory on the host."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.out = device.new_stream()
        self.back = device.new_stream()
        self.buffers = PinnedPool(device.pinned)
        self.words = PinnedPool(device.pinned, least=Words.BYTES)


class Transfer:
    """One collective. Refers to the tensors as long as the stream out may read them.

    Args:
        source, target: what is copied to the host and back; the same for a collective in place.
        on_done: called with the transfer when the call has ended, on any thread; if the host waits,
            with the stream back as the current stream.
    """

    def __init__(
        self, lanes: Lanes, source: Packing | None, target: Packing, on_done: OnDone, way: Way
    ) -> None:
        self._lanes = lanes
        self._device = lanes.device
        self._source = source
        self._target = target
        self._on_done = on_done
        self._carried = way.carried or target.dtype
        self._slice = max(1, SLICE_BYTES // self._carried.itemsize) if way.sliced else 0
        self._buffers: list[torch.Tensor] = []
        self._write = self._take(target)
        self._read: torch.Tensor | None = self._write
        if source is not target:
            self._read = None if source is None else self._take(source)
        self._words = Words(lanes.words.take(Words.BYTES)) if way.by_stream else None
        self._called = self._device.new_event()
        self._out: list[tuple[int, Event]] = []  # elements that are on the host after the event
        self._back = 0  # elements whose copy back is queued
        self._returned = self._device.new_event()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: Exception | None = None

    @property
    def by_stream(self) -> bool:
        """Whether the program may use the result, in its stream, before the call has ended."""
        return self._words is not None

    def begin(self) -> None:
        """Queue the copies to the host, after the current stream's work on the tensors."""
        self._called.record(self._device.current_stream())
        if self._source is None or self._read is None:
            self._out = [(0, self._called)]
        else:
            self._lanes.out.wait_event(self._called)
            self._queue_out(self._source, self._read)
        if self._words is not None:
            self._queue_back_behind(self._words.gate)

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

    def submit(self, submit: Submit) -> None:
        """Submit the collective, whose values the device announces. Raises the call's errors."""
        assert self._words is not None and self._read is not None
        step = self._slice or max(1, self._read.numel())
        words = DeviceWords(self._words.slices.numpy(), step, self._words.gate.numpy())
        try:
            submit(self._read, self._write, on_done=self._return, words=words)
        except BaseException:
            self._words.gate.fill_(DeviceWords.FAILED)
            raise

    @property
    def done(self) -> bool:
        """Whether the copy back has finished or the call has failed."""
        return self._ended.is_set() and (self._error is not None or self._returned.query())

    def wait(self, timeout: float | None = None) -> None:
        """Let the current stream wait for the copy back; the host too, unless ``by_stream``.

        Raises RoundTimeoutError after ``timeout`` seconds, or the error of a call that has ended.
        With ``by_stream``, the host waits only if there is a ``timeout``.
        """
        waits = not self.by_stream or timeout is not None
        if waits and not self._ended.wait(timeout):
            raise RoundTimeoutError(
                f"a call on {self._target.device} has not been submitted or its result has not "
                f"arrived after {timeout:g} s",
                reason="timeout",
            )
        if self._error is not None:
            raise self._error
        self._device.current_stream().wait_event(self._returned)

    def join(self) -> None:
        """Let the host wait until the call has ended, well or not."""
        self._ended.wait()

    def exception(self) -> Exception | None:
        """The error of the call; None if it succeeded or is not done yet."""
        return self._error

    def _take(self, packing: Packing) -> torch.Tensor:
        nbytes = packing.numel * self._carried.itemsize
        with torch.inference_mode(False):  # buffers outlive the caller's inference mode
            buffer = self._lanes.buffers.take(nbytes)
        self._buffers.append(buffer)
        return buffer[:nbytes].view(self._carried)

    # --- out ---

    def _queue_out(self, source: Packing, read: torch.Tensor) -> None:
        flat: list[torch.Tensor] = []
        self._device.queue(self._lanes.out, lambda: flat.append(source.flat().to(read.dtype)))
        step = self._slice or max(1, read.numel())
        for start in range(0, max(1, read.numel()), step):
            end = min(read.numel(), start + step)
            self._queue_slice(read[start:end], flat, start)
            if self._words is not None:
                self._device.queue_write(self._lanes.out, self._words.slices, start // step + 1)
                continue
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

    # --- back ---

    def _queue_back(self, arrived: int) -> None:
        """Queue the copy of the elements up to ``arrived`` that have not been copied yet.

        The copy need not wait for the program's stream: a result arrives after that stream has come
        to the call.
        """
        if arrived == self._back:
            return
        host, start = self._write[self._back : arrived], self._back
        self._device.queue(self._lanes.back, lambda: _copy_back(host, self._target, start))
        for tensor in self._target.tensors:
            self._device.keep(tensor, self._lanes.back)
        self._back = arrived

    def _queue_back_behind(self, gate: torch.Tensor) -> None:
        self._device.queue_wait(self._lanes.back, gate)
        # A call may fail before its values are out. The host's memory is in use until then.
        is_out = self._device.new_event()
        is_out.record(self._lanes.out)
        self._lanes.back.wait_event(is_out)
        self._queue_back(self._write.numel())
        self._device.queue(self._lanes.back, lambda: _spoil_if_failed(self._target, gate))
        self._end_back()

    def _end_back(self) -> None:
        """The copy back is queued. When it has been done, others may use the host's memory."""
        self._returned.record(self._lanes.back)
        for buffer in self._buffers:
            self._lanes.buffers.give(buffer, self._returned)
        if self._words is not None:
            self._lanes.words.give(self._words.page, self._returned)

    # --- the end ---

    def _return(self, work: Any) -> None:
        error: Exception | None = work.exception()
        if error is None and not self.by_stream:
            try:
                self._queue_back(self._write.numel())
                self._end_back()  # not after a failure: the engine may still use the memory
            except Exception as failed:
                error = failed
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            if self._ended.is_set():  # the device has failed, and then the call
                return
            self._error = error
            self._ended.set()
        with nullcontext() if self.by_stream else self._device.on(self._lanes.back):
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


def _spoil_if_failed(target: Packing, gate: torch.Tensor) -> None:
    """Make the result NaN if the call has failed, as the gate says once it is open.

    The device decides, because it may still fill the host's memory when a call fails.
    """
    with torch.inference_mode():
        has_failed = gate.to(target.device, non_blocking=True) == DeviceWords.FAILED
        for tensor in target.tensors:
            tensor.masked_fill_(has_failed, torch.nan)
