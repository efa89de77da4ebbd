"""The NCCL plugin's tables by ctypes, restated from NCCL's documentation: the caller's side.

Nothing is shared with nccl_plugin/abi.h, so a layout that is wrong there does not work here.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_float, c_int, c_int16, c_size_t, c_void_p
from typing import Any

from bench.fleet import ROOT

PLUGIN = ROOT / "build" / "native" / "nccl_plugin" / "libnccl-net-reducer.so"
VERSIONS = (6, 7, 8, 9, 10, 11, 12)
HANDLE_BYTES = 128
HOST, CUDA = 1, 2
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 4, 5, 6
# ncclDataType_t, by the names of NumPy and ml_dtypes; ncclRedOp_t
TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
OPS = ("sum", "prod", "max", "min")
_LEVELS = ("NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE")

_Out = POINTER(c_void_p)
# Without the arguments of its format: every line of the plugin has one text.
_Logger = CFUNCTYPE(None, c_int, ctypes.c_ulong, c_char_p, c_int, c_char_p, c_char_p)


class NcclError(Exception):
    """A call returned something else than ncclSuccess."""

    def __init__(self, call: str, result: int) -> None:
        super().__init__(call, result)
        self.result = result


def _call(*arguments: Any) -> Any:
    return CFUNCTYPE(c_int, *arguments)


def _vdevice(most: int) -> type[ctypes.Structure]:
    fields = [("ndevs", c_int), ("devs", c_int * most)]
    return type(f"VDevice{most}", (ctypes.Structure,), {"_fields_": fields})


def properties(version: int) -> type[ctypes.Structure]:
    """ncclNetProperties of a version."""
    fields: list[tuple[str, Any]] = [
        ("name", c_char_p), ("pciPath", c_char_p), ("guid", ctypes.c_uint64),
        ("ptrSupport", c_int),
    ]  # fmt: skip
    fields += [("regIsGlobal", c_int)] if version >= 8 else []
    fields += [("forceFlush", c_int)] if version >= 9 else []
    fields += [
        ("speed", c_int), ("port", c_int), ("latency", c_float), ("maxComms", c_int),
        ("maxRecvs", c_int),
    ]  # fmt: skip
    fields += [("netDeviceType", c_int), ("netDeviceVersion", c_int)] if version >= 7 else []
    if version >= 9:
        fields += [("vProps", _vdevice(8 if version >= 12 else 4))]
        fields += [("maxP2pBytes", c_size_t), ("maxCollBytes", c_size_t)]
    fields += [("maxMultiRequestSize", c_int)] if version >= 11 else []
    fields += [("railId", c_int16), ("planeId", c_int16)] if version >= 12 else []
    return type(f"Properties{version}", (ctypes.Structure,), {"_fields_": fields})


def _sge(version: int) -> type[ctypes.Structure]:
    size = c_size_t if version >= 9 else ctypes.c_uint32
    fields = [("mhandle", c_void_p), ("address", c_void_p), ("size", size)]
    return type(f"Sge{version}", (ctypes.Structure,), {"_fields_": fields})


def _coll_table(version: int, sge: type[ctypes.Structure]) -> type[ctypes.Structure]:
    size = c_size_t if version >= 8 else c_int
    count = c_size_t if version >= 9 else c_int
    context = [c_void_p] if version >= 11 else []
    starts = [_Out, ctypes.c_uint64, _Logger] if version >= 11 else [_Logger]
    fields = [
        ("name", c_char_p),
        ("init", _call(*starts)),
        ("devices", _call(POINTER(c_int))),
        ("getProperties", _call(c_int, c_void_p)),
        ("listen", _call(*context, c_int, c_void_p, _Out)),
        ("connect", _call(POINTER(c_void_p), c_int, c_int, c_void_p, _Out)),
        ("reduceSupport", _call(c_int, c_int, POINTER(c_int))),
        ("regMr", _call(c_void_p, c_void_p, size, c_int, _Out)),
        ("regMrDmaBuf", c_void_p),
        ("deregMr", _call(c_void_p, c_void_p)),
        (
            "iallreduce",
            _call(c_void_p, c_void_p, c_void_p, count, c_int, c_int, c_void_p, c_void_p, _Out),
        ),
    ]
    window = [c_size_t, c_size_t, c_size_t]
    if version >= 8:
        gather = _call(c_void_p, c_void_p, c_int, POINTER(sge), *window, c_void_p, _Out)
        scatter = _call(
            c_void_p, c_int, POINTER(sge), c_void_p, *window, c_int, c_int, c_void_p, _Out
        )
        fields += [("iallgather", gather), ("ireducescatter", scatter)]
    fields += [
        ("iflush", _call(c_void_p, c_void_p, c_int, c_void_p, _Out)),
        ("test", _call(c_void_p, POINTER(c_int), POINTER(c_int))),
        ("closeColl", _call(c_void_p)),
        ("closeListen", _call(c_void_p)),
    ]
    fields += [("makeVDevice", c_void_p)] if version >= 9 else []
    fields += [("finalize", _call(c_void_p))] if version >= 11 else []
    return type(f"CollNet{version}", (ctypes.Structure,), {"_fields_": fields})


def _net_table(version: int) -> type[ctypes.Structure]:
    size = c_size_t if version >= 9 else c_int
    context = [c_void_p] if version >= 11 else []
    offload = [_Out] if version >= 7 else []
    phandle = [c_void_p] if version >= 10 else []
    phandles = [POINTER(c_void_p)] if version >= 10 else []
    profiler = [c_void_p] if version >= 10 else []
    starts = [_Out, ctypes.c_uint64, c_void_p] if version >= 11 else []
    config = [c_void_p] if version == 10 else []
    data, mhandles = POINTER(c_void_p), POINTER(c_void_p)
    fields = [
        ("name", c_char_p),
        ("init", _call(*starts, _Logger, *profiler)),
        ("devices", _call(POINTER(c_int))),
        ("getProperties", _call(c_int, c_void_p)),
        ("listen", _call(*context, c_int, c_void_p, _Out)),
        ("connect", _call(*context, c_int, *config, c_void_p, _Out, *offload)),
        ("accept", _call(c_void_p, _Out, *offload)),
        ("regMr", _call(c_void_p, c_void_p, c_size_t if version >= 8 else c_int, c_int, _Out)),
        ("regMrDmaBuf", c_void_p),
        ("deregMr", _call(c_void_p, c_void_p)),
        ("isend", _call(c_void_p, c_void_p, size, c_int, c_void_p, *phandle, _Out)),
        (
            "irecv",
            _call(c_void_p, c_int, data, POINTER(size), POINTER(c_int), mhandles, *phandles, _Out),
        ),
        (
            "iflush",
            _call(c_void_p, c_int, data, POINTER(c_int), mhandles, _Out),
        ),
        ("test", _call(c_void_p, POINTER(c_int), POINTER(c_int))),
        ("closeSend", _call(c_void_p)),
        ("closeRecv", _call(c_void_p)),
        ("closeListen", _call(c_void_p)),
    ]
    fields += [("getDeviceMr", c_void_p), ("irecvConsumed", c_void_p)] if version >= 7 else []
    fields += [("makeVDevice", c_void_p)] if version >= 9 else []
    fields += [("finalize", _call(c_void_p)), ("setNetAttr", c_void_p)] if version >= 11 else []
    return type(f"Net{version}", (ctypes.Structure,), {"_fields_": fields})


class _Plugin:
    """One table of one version, called as NCCL calls it."""

    def __init__(self, version: int, table: type[ctypes.Structure], symbol: str) -> None:
        self.version = version
        self.lines: list[tuple[str, str]] = []
        self._logger = _Logger(self._log)
        self._table: Any = table.in_dll(ctypes.CDLL(str(PLUGIN)), f"{symbol}_v{version}")
        self._context: list[Any] = []
        self.name = self._table.name.decode()

    def _log(
        self, level: int, flags: int, file: bytes, line: int, format_: bytes, text: bytes
    ) -> None:
        self.lines.append((_LEVELS[level], format_.replace(b"%s", text).decode()))

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
        """The size of the result once it is there."""
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
    """ncclCollNetPlugin of one version."""

    def __init__(self, version: int) -> None:
        self._sge = _sge(version)
        super().__init__(version, _coll_table(version, self._sge), "ncclCollNetPlugin")

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
        """Of two NumPy arrays; None: too many requests are in flight."""
        request = c_void_p()
        self.call(
            "iallreduce", comm, send.ctypes.data, receive.ctypes.data, send.size,
            TYPES.index(type_), OPS.index(op), None, None, byref(request),
        )  # fmt: skip
        return request if request.value else None

    def all_gather(
        self, comm: c_void_p, send: Any, receive: Any, per_rank: int, offset: int
    ) -> c_void_p:
        """``receive`` is the window from ``offset`` on; bytes."""
        request = c_void_p()
        part = self._sge(None, receive.ctypes.data, receive.nbytes)
        self.call(
            "iallgather", comm, send.ctypes.data, 1, byref(part), per_rank, offset, receive.nbytes,
            None, byref(request),
        )  # fmt: skip
        return request

    def reduce_scatter(
        self, comm: c_void_p, send: Any, receive: Any, per_rank: int, offset: int,
        type_: str, op: str,
    ) -> c_void_p:  # fmt: skip
        """``send`` is the window from ``offset`` on; bytes."""
        request = c_void_p()
        part = self._sge(None, send.ctypes.data, send.nbytes)
        self.call(
            "ireducescatter", comm, 1, byref(part), receive.ctypes.data, per_rank, offset,
            send.nbytes, TYPES.index(type_), OPS.index(op), None, byref(request),
        )  # fmt: skip
        return request

    def close(self, comm: c_void_p) -> None:
        self.call("closeColl", comm)


class Net(_Plugin):
    """ncclNetPlugin of one version."""

    def __init__(self, version: int) -> None:
        super().__init__(version, _net_table(version), "ncclNetPlugin")
        self._offload = [None] if version >= 7 else []

    def init(self) -> None:
        config = [None] if self.version >= 11 else []
        self._init(*config, self._logger, *([None] if self.version >= 10 else []))

    def connect(self, handle: bytes, seconds: float = 30.0) -> c_void_p:
        """As often as it takes, with the same memory as the handle."""
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
            assert time.monotonic() < deadline, f"{name}: nobody within {seconds} s"
            self.call(name, *arguments, byref(comm), *self._offload)
        return comm

    def send(self, comm: c_void_p, data: Any) -> c_void_p | None:
        """Of a NumPy array; None: too many requests are in flight."""
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
