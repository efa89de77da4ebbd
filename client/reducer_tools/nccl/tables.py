"""Calls the function tables of an NCCL net plugin in the way NCCL does."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import byref, c_int, c_void_p
from pathlib import Path
from typing import Any

from reducer_tools.nccl.structs import (
    HANDLE_BYTES,
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

    def close(self, comm: c_void_p) -> None:
        self.call("closeColl", comm)


class Net(_Plugin):
    """The table ncclNetPlugin of one version."""

    def __init__(self, library: Path, version: int) -> None:
        super().__init__(library, version, net_table(version), "ncclNetPlugin")

    def init(self) -> None:
        config = [None] if self.version >= 11 else []
        self._init(*config, self._logger, *([None] if self.version >= 10 else []))
