"""The part of CUDA's driver API (libcuda.so.1, by ctypes) that tests of NCCL need.

The context is the device's primary context, which the runtime API inside NCCL uses, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

from tests.support.arrays import Array

_SUCCESS, _NOT_READY = 0, 600
_BEHIND_COPIES = 0  # a stream whose work waits for the copies of `put`, and they for it


class CudaError(Exception):
    """A call of the driver failed."""


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(driver: Any, name: str, *arguments: Any) -> None:
    if (result := getattr(driver, name)(*arguments)) != _SUCCESS:
        raise CudaError(f"{name} returned CUresult {result}")


def absence() -> str:
    """Why there is no CUDA device; empty if there is one."""
    count = c_int()
    try:
        driver = _driver()
        _call(driver, "cuInit", 0)
        _call(driver, "cuDeviceGetCount", byref(count))
    except (OSError, CudaError) as error:
        return f"no CUDA device: {error}"
    return "" if count.value else "no CUDA device: the driver counts none"


class Device:
    """A device that is current in this thread, with one stream."""

    def __init__(self, rank: int) -> None:
        self._driver = _driver()
        count, number, context = c_int(), c_int(), c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGetCount", byref(count))
        self._call("cuDeviceGet", byref(number), rank % count.value)
        self._call("cuDevicePrimaryCtxRetain", byref(context), number)
        self._call("cuCtxSetCurrent", context)
        self.stream = c_void_p()
        self._call("cuStreamCreate", byref(self.stream), c_uint(_BEHIND_COPIES))

    def put(self, array: Array) -> int:
        """Copy to the device; returns the address of the copy, which is valid until `free`."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(array.nbytes))
        whole = np.ascontiguousarray(array)
        source = c_void_p(whole.ctypes.data)
        self._call("cuMemcpyHtoD_v2", address, source, c_size_t(whole.nbytes))
        return address.value

    def free(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            self._call("cuMemFree_v2", c_uint64(address))

    def read(self, address: int, like: Array) -> Array:
        """Read an array with the shape and type of ``like``."""
        found = np.empty_like(like)
        target = c_void_p(found.ctypes.data)
        self._call("cuMemcpyDtoH_v2", target, c_uint64(address), c_size_t(found.nbytes))
        return found

    def idle(self) -> bool:
        """Whether all work of the stream is done."""
        result = self._driver.cuStreamQuery(self.stream)
        if result not in (_SUCCESS, _NOT_READY):
            raise CudaError(f"cuStreamQuery returned CUresult {result}")
        return bool(result == _SUCCESS)

    def _call(self, name: str, *arguments: Any) -> None:
        _call(self._driver, name, *arguments)
