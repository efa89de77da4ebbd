"""The tables of an NCCL net plugin, called as NCCL calls them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from reducer_tools.nccl.layouts import (
    HANDLE_BYTES,
    HOST,
    OPS,
    SUCCESS,
    TYPES,
    Logger,
    coll_table,
    net_table,
    properties,
    sge,
)

_LEVELS = ("NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE")


class NcclError(Exception):
    """A call did not return ncclSuccess."""

    def __init__(self, call: str, result: int) -> None:
        super().__init__(call, result)
        self.call = call
        self.result = result


class _Plugin:
    """One table of the library, in one version. `lines` has the plugin's log lines."""

    def __init__(
        self, library: Path, version: int, table: type[ctypes.Structure], symbol: str
    ) -> None:
        self.version = version
        self.lines: list[tuple[str, str]] = []
        self._logger = Logger(self._log)
        self._table: Any = table.in_dll(ctypes.CDLL(str(library)), f"{symbol}_v{version}")
        self._context: list[Any] = []
        self.name = self._table.name.decode()

    def _log(
        self, level: int, flags: int, file: bytes, line: int, format_: bytes, first: int | None
    ) -> None:
        if format_.count(b"%") == 1 and b"%s" in format_ and first:
            format_ = format_.replace(b"%s", ctypes.string_at(first))
        self.lines.append((_LEVELS[level], format_.decode(errors="replace")))

    def call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._table, name)(*arguments)
        if result != SUCCESS:
            raise NcclError(name, result)

    def _init(self, *more: Any) -> None:
        if self.version >= 11:
            context = c_void_p(1)
            self.call("init", byref(context), 7, *more)
            self._context = [context]
        else:
            self.call("init", *more)

    def devices(self) -> list[dict[str, Any]]:
        count = c_int(-1)
        self.call("devices", byref(count))
        found = []
        for device in range(count.value):
            one = properties(self.version)()
            self.call("getProperties", device, byref(one))
            found.append({name: getattr(one, name) for name, *_ in one._fields_})
        return found

    def listen(self, device: int = 0) -> tuple[bytes, c_void_p]:
        handle = ctypes.create_string_buffer(b"\xee" * HANDLE_BYTES, HANDLE_BYTES)
        comm = c_void_p()
        self.call("listen", *self._context, device, handle, byref(comm))
        return handle.raw, comm

    def reg_mr(self, comm: c_void_p, address: int, size: int, type_: int = HOST) -> c_void_p:
        mhandle = c_void_p()
        self.call("regMr", comm, address, size, type_, byref(mhandle))
        return mhandle

    def test(self, request: c_void_p) -> int | None:
        """The size of the result when the request is done, else None."""
        done, size = c_int(-1), c_int(-1)
        self.call("test", request, byref(done), byref(size))
        return size.value if done.value else None

    def wait(self, request: c_void_p, seconds: float = 60.0) -> int:
        deadline = time.monotonic() + seconds
        while (size := self.test(request)) is None:
            assert time.monotonic() < deadline, f"a request is not done after {seconds} s"
        return size

    def close_listen(self, comm: c_void_p) -> None:
        self.call("closeListen", comm)

    def finalize(self) -> None:
        if self.version >= 11:
            self.call("finalize", *self._context)


class CollNet(_Plugin):
    """The table ncclCollNetPlugin of one version. `sge` is the struct for a part of a window."""

    def __init__(self, library: Path, version: int) -> None:
        self.sge = sge(version)
        super().__init__(library, version, coll_table(version, self.sge), "ncclCollNetPlugin")

    def init(self) -> None:
        self._init(self._logger)

    def connect(self, handles: Sequence[bytes], rank: int, listen: c_void_p) -> c_void_p:
        buffers = [ctypes.create_string_buffer(handle, HANDLE_BYTES) for handle in handles]
        pointers = (c_void_p * len(buffers))(*(ctypes.addressof(buffer) for buffer in buffers))
        comm = c_void_p()
        self.call("connect", pointers, len(handles), rank, listen, byref(comm))
        return comm

    def supports(self, type_: int, op: int) -> bool:
        supported = c_int(-1)
        self.call("reduceSupport", type_, op, byref(supported))
        return bool(supported.value)

    def all_reduce(
        self, comm: c_void_p, send: Any, receive: Any, type_: str, op: str
    ) -> c_void_p | None:
        """All-reduce NumPy arrays. None if too many requests are in flight."""
        request = c_void_p()
        self.call(
            "iallreduce", comm, send.ctypes.data, receive.ctypes.data, send.size,
            TYPES.index(type_), OPS.index(op), None, None, byref(request),
        )  # fmt: skip
        return request if request.value else None

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

    def close(self, comm: c_void_p) -> None:
        self.call("closeColl", comm)


class Net(_Plugin):
    """The table ncclNetPlugin of one version."""

    def __init__(self, library: Path, version: int) -> None:
        super().__init__(library, version, net_table(version), "ncclNetPlugin")
        self._offload = [None] if version >= 7 else []

    def init(self) -> None:
        config = [None] if self.version >= 11 else []
        self._init(*config, self._logger, *([None] if self.version >= 10 else []))

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
