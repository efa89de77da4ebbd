"""NCCL by ctypes: the functions that frameworks call, with the signatures of the documentation."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

SUCCESS, UNHANDLED_CUDA_ERROR, REMOTE_ERROR = 0, 1, 6
# ncclDataType_t and ncclRedOp_t, by our names
TYPES = {"int32": 2, "float16": 6, "float32": 7, "bfloat16": 9}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", c_char * 128),)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(_UniqueId),),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, _UniqueId, c_int),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclCommDestroy": (c_void_p,),
    "ncclCommAbort": (c_void_p,),
    "ncclAllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclReduceScatter": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclBroadcast": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclAllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
    "ncclSend": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclRecv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}


class LibraryError(Exception):
    """A call of NCCL did not return ncclSuccess."""

    def __init__(self, call: str, result: int, text: str) -> None:
        super().__init__(call, result, text)
        self.call, self.result, self.text = call, result, text

    def __str__(self) -> str:
        return f"{self.call} gave {self.result} ({self.text}); NCCL's log says more"


class Nccl:
    """A libnccl.so.2 that is loaded into this process."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.ncclGetErrorString.restype = c_char_p
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
        version = c_int()
        self.call("ncclGetVersion", byref(version))
        self.version: int = version.value

    def call(self, name: str, *arguments: Any) -> None:
        self.check(name, getattr(self._library, name)(*arguments))

    def check(self, name: str, result: int) -> None:
        if result != SUCCESS:
            text = self._library.ncclGetErrorString(result).decode()
            raise LibraryError(name, result, text)

    def unique_id(self) -> bytes:
        found = _UniqueId()
        self.call("ncclGetUniqueId", byref(found))
        return bytes(found)

    def join(self, unique_id: bytes, rank: int, world: int) -> Communicator:
        """Call ncclCommInitRank on the device of this thread."""
        comm = c_void_p()
        wanted = _UniqueId.from_buffer_copy(unique_id)
        self.call("ncclCommInitRank", byref(comm), world, wanted, rank)
        return Communicator(self, comm)


class Communicator:
    """One ncclComm_t; counts are in elements, and memory is given by device addresses."""

    def __init__(self, nccl: Nccl, comm: c_void_p) -> None:
        self._nccl = nccl
        self._comm = comm

    def all_reduce(
        self, send: int, receive: int, count: int, type_: str, op: str, stream: Any
    ) -> None:
        self._reduce("ncclAllReduce", send, receive, count, type_, op, stream)

    def reduce_scatter(
        self, send: int, receive: int, count: int, type_: str, op: str, stream: Any
    ) -> None:
        """Reduce-scatter; ``count`` is the number of elements that each rank receives."""
        self._reduce("ncclReduceScatter", send, receive, count, type_, op, stream)

    def _reduce(
        self, call: str, send: int, receive: int, count: int, type_: str, op: str, stream: Any
    ) -> None:
        self._nccl.call(call, send, receive, count, TYPES[type_], OPS[op], self._comm, stream)

    def broadcast(
        self, send: int, receive: int, count: int, type_: str, root: int, stream: Any
    ) -> None:
        self._nccl.call(
            "ncclBroadcast", send, receive, count, TYPES[type_], root, self._comm, stream
        )

    def all_gather(self, send: int, receive: int, count: int, type_: str, stream: Any) -> None:
        """All-gather; ``count`` is the number of elements that each rank sends."""
        self._nccl.call("ncclAllGather", send, receive, count, TYPES[type_], self._comm, stream)

    def exchange(
        self, send: int, to: int, receive: int, from_: int, count: int, type_: str, stream: Any
    ) -> None:
        """Call ncclSend and ncclRecv as one group."""
        self._nccl.call("ncclGroupStart")
        self._nccl.call("ncclSend", send, count, TYPES[type_], to, self._comm, stream)
        self._nccl.call("ncclRecv", receive, count, TYPES[type_], from_, self._comm, stream)
        self._nccl.call("ncclGroupEnd")

    def check(self) -> None:
        """Raises LibraryError if NCCL's threads have failed since the calls."""
        found = c_int()
        self._nccl.call("ncclCommGetAsyncError", self._comm, byref(found))
        self._nccl.check("ncclCommGetAsyncError", found.value)

    def destroy(self) -> None:
        self._nccl.call("ncclCommDestroy", self._comm)

    def abort(self) -> None:
        self._nccl.call("ncclCommAbort", self._comm)
