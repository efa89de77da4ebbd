"""Loads libraries with dlopen, as NCCL does, and lists their plugin tables."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reducer_tools.nccl.installed import on_library_path

_RTLD_DI_LINKMAP = 2
_MOST_VERSION = 32
_MACHINES = {3: "x86", 21: "ppc64", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}


@dataclass(frozen=True)
class Opened:
    """The result of one dlopen.

    ``net``, ``coll`` and ``tuner`` are the versions of the library's tables, ``plugin`` the name of
    its net.
    """

    name: str
    path: str = ""
    error: str = ""
    plugin: str = ""
    net: tuple[int, ...] = ()
    coll: tuple[int, ...] = ()
    tuner: tuple[int, ...] = ()


class _LinkMap(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


def open_all(names: list[str]) -> list[Opened]:
    """Load each library as NCCL does. Call this in a child process: a library may crash."""
    return [_open(name) for name in names]


def _open(name: str) -> Opened:
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return Opened(name, error=str(error))
    net, coll, tuner = (_versions(library, half) for half in ("Net", "CollNet", "Tuner"))
    return Opened(
        name,
        path=_path_of(library),
        plugin=_name_of(library, f"ncclNetPlugin_v{max(net)}") if net else "",
        net=net,
        coll=coll,
        tuner=tuner,
    )


def _versions(library: ctypes.CDLL, half: str) -> tuple[int, ...]:
    return tuple(v for v in range(_MOST_VERSION) if _exports(library, f"nccl{half}Plugin_v{v}"))


def _exports(library: ctypes.CDLL, symbol: str) -> bool:
    try:
        ctypes.c_byte.in_dll(library, symbol)
    except ValueError:
        return False
    return True


def _name_of(library: ctypes.CDLL, symbol: str) -> str:
    """The name in a table, which is the first member of every table."""
    return (ctypes.c_char_p.in_dll(library, symbol).value or b"").decode(errors="replace")


def _path_of(library: ctypes.CDLL) -> str:
    entry = ctypes.POINTER(_LinkMap)()
    handle = ctypes.c_void_p(library._handle)
    failed = ctypes.CDLL(None).dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(entry))
    return "" if failed else os.path.realpath(entry.contents.name.decode())


def foreign(name: str, environment: Mapping[str, str]) -> str:
    """A text about a file of this name that is for another machine; "" if there is none.

    The loader ignores such files without an error.
    """
    ours = _machine(Path(sys.executable))
    paths = [Path(name)] if "/" in name else on_library_path(name, environment)
    for path in paths:
        theirs = _machine(path) if path.is_file() else ""
        if theirs and theirs != ours:
            return f"{path} is for {theirs}, but this machine is {ours}"
    return ""


def _machine(path: Path) -> str:
    """The machine in the header of an ELF file; "" for other files."""
    with path.open("rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return ""
    order = "<" if header[5] == 1 else ">"
    (number,) = struct.unpack_from(f"{order}H", header, 18)
    return _MACHINES.get(number, f"machine {number}")
