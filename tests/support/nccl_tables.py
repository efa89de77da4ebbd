"""The calls of NCCL's tables that `reducer nccl check` does not make."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from reducer_tools.nccl import tables
from reducer_tools.nccl.structs import HANDLE_BYTES, HOST, OPS, TYPES


def reg_mr(
    table: tables.CollNet | tables.Net, comm: c_void_p, address: int, size: int, type_: int = HOST
) -> c_void_p:
    mhandle = c_void_p()
    table.call("regMr", comm, address, size, type_, byref(mhandle))
    return mhandle


class CollNet(tables.CollNet):
    """The table ncclCollNetPlugin of one version, with the calls for windows."""

    def supports(self, type_: int, op: int) -> bool:
        supported = c_int(-1)
        self.call("reduceSupport", type_, op, byref(supported))
        return bool(supported.value)

    def all_gather(
        self, comm: c_void_p, send: Any, receive: Any, per_rank: int, offset: int
    ) -> c_void_p:
        """All-gather arrays of bytes. ``receive`` is the window that begins at ``offset``."""
        request = c_void_p()
        part = self.sge(None, receive.ctypes.data, receive.nbytes)
        self.call(
            "iallgather", comm, send.ctypes.data, 1, byref(part), per_rank, offset, receive.nbytes,
            None, byref(request),
        )  # fmt: skip
        return request

    def reduce_scatter(
        self, comm: c_void_p, send: Any, receive: Any, per_rank: int, offset: int,
        type_: str, op: str,
    ) -> c_void_p:  # fmt: skip
        """Reduce-scatter an array. ``send`` is the window that begins at byte ``offset``."""
        request = c_void_p()
        part = self.sge(None, send.ctypes.data, send.nbytes)
        self.call(
            "ireducescatter", comm, 1, byref(part), receive.ctypes.data, per_rank, offset,
            send.nbytes, TYPES.index(type_), OPS.index(op), None, byref(request),
        )  # fmt: skip
        return request


class Net(tables.Net):
    """The table ncclNetPlugin of one version, with connections and messages."""

    def __init__(self, library: Path, version: int) -> None:
        super().__init__(library, version)
        self._offload = [None] if version >= 7 else []

    def connect(self, handle: bytes, seconds: float = 30.0) -> c_void_p:
        """Call connect until it succeeds. NCCL passes the same memory for the handle each time."""
        memory = ctypes.create_string_buffer(handle, HANDLE_BYTES)
        config = [None] if self.version == 10 else []
        arguments = (*self._context, 0, *config, memory)
        return self._until("connect", arguments, seconds)

    def accept(self, listen: c_void_p, seconds: float = 30.0) -> c_void_p:
        return self._until("accept", (listen,), seconds)

    def _until(self, name: str, arguments: Sequence[Any], seconds: float) -> c_void_p:
        comm = c_void_p()
        deadline = time.monotonic() + seconds
        while not comm.value:
            assert time.monotonic() < deadline, f"{name}: no peer within {seconds} s"
            self.call(name, *arguments, byref(comm), *self._offload)
        return comm

    def send(self, comm: c_void_p, data: Any) -> c_void_p | None:
        """Send a NumPy array. None if too many requests are in flight."""
        request = c_void_p()
        phandle = [None] if self.version >= 10 else []
        self.call("isend", comm, data.ctypes.data, data.nbytes, 0, None, *phandle, byref(request))
        return request if request.value else None

    def receive(self, comm: c_void_p, data: Any) -> c_void_p | None:
        request = c_void_p()
        size = c_size_t if self.version >= 9 else c_int
        phandles = [None] if self.version >= 10 else []
        self.call(
            "irecv", comm, 1, (c_void_p * 1)(data.ctypes.data), (size * 1)(data.nbytes),
            (c_int * 1)(0), None, *phandles, byref(request),
        )  # fmt: skip
        return request if request.value else None

    def close_send(self, comm: c_void_p) -> None:
        self.call("closeSend", comm)

    def close_receive(self, comm: c_void_p) -> None:
        self.call("closeRecv", comm)
