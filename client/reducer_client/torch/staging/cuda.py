"""CUDA devices, by torch's streams and events and two calls of CUDA's driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

# CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS of cuda.h. A device that has the operations of
# 64 bits has those of 32 bits.
_CAN_ORDER = 122
# CU_STREAM_WAIT_VALUE_GEQ and CU_STREAM_WRITE_VALUE_DEFAULT of cuda.h: wait until the word, as a
# signed number, is the value or more; write after all writes before.
_GREATER_OR_EQUAL = 0
_AFTER_ALL = 0


class CudaDevice:
    """See ``Device``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's

    def new_event(self) -> torch.cuda.Event:
        # A blocking event lets the waiting thread sleep; others let it spin.
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def queue(self, stream: Any, work: Callable[[], None]) -> None:
        with torch.cuda.stream(stream):
            work()

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def can_order(self) -> bool:
        try:
            driver = _driver()
        except OSError:  # AMD's devices, which torch calls cuda too
            return False
        number = ctypes.c_int()
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        status = driver.cuDeviceGetAttribute(ctypes.byref(number), _CAN_ORDER, index)
        return status == 0 and number.value == 1

    def queue_write(self, stream: Any, word: torch.Tensor, value: int) -> None:
        self._queue_word("cuStreamWriteValue32_v2", stream, word, value, _AFTER_ALL)

    def queue_wait(self, stream: Any, word: torch.Tensor) -> None:
        self._queue_word("cuStreamWaitValue32_v2", stream, word, 1, _GREATER_OR_EQUAL)

    def _queue_word(
        self, name: str, stream: Any, word: torch.Tensor, value: int, flags: int
    ) -> None:
        with torch.cuda.device(self.device):
            # With unified addressing a device knows pinned memory by its address on the host.
            status = getattr(_driver(), name)(
                ctypes.c_void_p(stream.cuda_stream),
                ctypes.c_uint64(word.data_ptr()),
                ctypes.c_uint32(value),
                ctypes.c_uint(flags),
            )
        if status:
            raise RuntimeError(f"{name} failed on {self.device}: CUDA error {status}")

    def check_start(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a collective of CUDA tensors while a CUDA graph is captured: the tensors go "
                "through host memory, which a graph cannot replay. Capture the forward and the "
                "backward pass without the collectives, and make the calls after the replay"
            )


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
