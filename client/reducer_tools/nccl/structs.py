"""The layouts of NCCL's plugin tables as ctypes, from NCCL's documentation.

This file shares nothing with nccl_plugin/abi.h, so that tests find a wrong layout there.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_float, c_int, c_int16, c_size_t, c_void_p
from typing import Any

VERSIONS = (6, 7, 8, 9, 10, 11, 12)
HANDLE_BYTES = 128
HOST, CUDA = 1, 2
SUCCESS, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 3, 4, 5, 6
# The values of ncclDataType_t, under the names of NumPy and ml_dtypes.
TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
OPS = ("sum", "prod", "max", "min")  # the values of ncclRedOp_t

Out = POINTER(c_void_p)
# ncclDebugLogger_t is variadic, and ctypes has no variadic callbacks. This type receives the first
# variadic argument as a sixth ordinary argument, which has the same place on x86-64 and aarch64
# under Linux. The value is garbage if the format has no argument.
Logger = CFUNCTYPE(None, c_int, ctypes.c_ulong, c_char_p, c_int, c_char_p, c_void_p)


def _call(*arguments: Any) -> Any:
    return CFUNCTYPE(c_int, *arguments)


def _vdevice(most: int) -> type[ctypes.Structure]:
    fields = [("ndevs", c_int), ("devs", c_int * most)]
    return type(f"VDevice{most}", (ctypes.Structure,), {"_fields_": fields})


def properties(version: int) -> type[ctypes.Structure]:
    """The struct ncclNetProperties of a version."""
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


def sge(version: int) -> type[ctypes.Structure]:
    """The struct ncclNetSGE of a version, a part of a window."""
    size = c_size_t if version >= 9 else ctypes.c_uint32
    fields = [("mhandle", c_void_p), ("address", c_void_p), ("size", size)]
    return type(f"Sge{version}", (ctypes.Structure,), {"_fields_": fields})


def coll_table(version: int, sge: type[ctypes.Structure]) -> type[ctypes.Structure]:
    size = c_size_t if version >= 8 else c_int
    count = c_size_t if version >= 9 else c_int
    context = [c_void_p] if version >= 11 else []
    starts = [Out, ctypes.c_uint64, Logger] if version >= 11 else [Logger]
    fields = [
        ("name", c_char_p),
        ("init", _call(*starts)),
        ("devices", _call(POINTER(c_int))),
        ("getProperties", _call(c_int, c_void_p)),
        ("listen", _call(*context, c_int, c_void_p, Out)),
        ("connect", _call(POINTER(c_void_p), c_int, c_int, c_void_p, Out)),
        ("reduceSupport", _call(c_int, c_int, POINTER(c_int))),
        ("regMr", _call(c_void_p, c_void_p, size, c_int, Out)),
        ("regMrDmaBuf", c_void_p),
        ("deregMr", _call(c_void_p, c_void_p)),
        (
            "iallreduce",
            _call(c_void_p, c_void_p, c_void_p, count, c_int, c_int, c_void_p, c_void_p, Out),
        ),
    ]
    window = [c_size_t, c_size_t, c_size_t]
    if version >= 8:
        gather = _call(c_void_p, c_void_p, c_int, POINTER(sge), *window, c_void_p, Out)
        scatter = _call(
            c_void_p, c_int, POINTER(sge), c_void_p, *window, c_int, c_int, c_void_p, Out
        )
        fields += [("iallgather", gather), ("ireducescatter", scatter)]
    fields += [
        ("iflush", _call(c_void_p, c_void_p, c_int, c_void_p, Out)),
        ("test", _call(c_void_p, POINTER(c_int), POINTER(c_int))),
        ("closeColl", _call(c_void_p)),
        ("closeListen", _call(c_void_p)),
    ]
    fields += [("makeVDevice", c_void_p)] if version >= 9 else []
    fields += [("finalize", _call(c_void_p))] if version >= 11 else []
    return type(f"CollNet{version}", (ctypes.Structure,), {"_fields_": fields})


def net_table(version: int) -> type[ctypes.Structure]:
    size = c_size_t if version >= 9 else c_int
    context = [c_void_p] if version >= 11 else []
    offload = [Out] if version >= 7 else []
    phandle = [c_void_p] if version >= 10 else []
    phandles = [POINTER(c_void_p)] if version >= 10 else []
    profiler = [c_void_p] if version >= 10 else []
    starts = [Out, ctypes.c_uint64, c_void_p] if version >= 11 else []
    config = [c_void_p] if version == 10 else []
    data, mhandles = POINTER(c_void_p), POINTER(c_void_p)
    fields = [
        ("name", c_char_p),
        ("init", _call(*starts, Logger, *profiler)),
        ("devices", _call(POINTER(c_int))),
        ("getProperties", _call(c_int, c_void_p)),
        ("listen", _call(*context, c_int, c_void_p, Out)),
        ("connect", _call(*context, c_int, *config, c_void_p, Out, *offload)),
        ("accept", _call(c_void_p, Out, *offload)),
        ("regMr", _call(c_void_p, c_void_p, c_size_t if version >= 8 else c_int, c_int, Out)),
        ("regMrDmaBuf", c_void_p),
        ("deregMr", _call(c_void_p, c_void_p)),
        ("isend", _call(c_void_p, c_void_p, size, c_int, c_void_p, *phandle, Out)),
        (
            "irecv",
            _call(c_void_p, c_int, data, POINTER(size), POINTER(c_int), mhandles, *phandles, Out),
        ),
        (
            "iflush",
            _call(c_void_p, c_int, data, POINTER(c_int), mhandles, Out),
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
