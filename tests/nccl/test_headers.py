"""Compares our two declarations of NCCL's tables with NVIDIA's nccl_net.h (`make test-nccl`).

One program per declaration prints, for each member, its offset and the sizes of its result and
arguments. NVIDIA's header comes from the wheels; no wheel has the header of tables 9 and later.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reducer_tools.nccl import structs
from tests.support import nccl_wheels
from tests.support.cluster import ROOT

pytestmark = pytest.mark.nccl

_PROGRAM = """
#include <cstddef>
#include <cstdio>
#include "{header}"
namespace ors::nccl {{}}
using namespace ors::nccl;
template <class Member> struct Shape {{
  static void print() {{ std::printf("%zu", sizeof(Member)); }}
}};
template <class Result, class... Arguments> struct Shape<Result (*)(Arguments...)> {{
  static void print() {{
    std::printf("%zu(", sizeof(Result));
    const char* comma = "";
    ((std::printf("%s%zu", comma, sizeof(Arguments)), comma = ","), ...);
    std::printf(")");
  }}
}};
template <class Member> void row(const char* name, size_t offset) {{
  std::printf("%s: %zu ", name, offset);
  Shape<Member>::print();
  std::printf("\\n");
}}
int main() {{
{rows}
}}
"""
# Stubs for the headers that NVIDIA's header includes and that the wheels lack.
_STUBS = {
    "cuda_runtime.h": "typedef struct Stream* cudaStream_t; typedef struct Event* cudaEvent_t;",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
    "nccl_common.h": "typedef void (*ncclDebugLogger_t)(...);",
    "net_device.h": """
        typedef enum { NCCL_NET_DEVICE_HOST = 0 } ncclNetDeviceType;
        typedef struct Handle ncclNetDeviceHandle_v7_t, ncclNetDeviceHandle_v8_t;
    """,
}
_THEIRS = ("ncclNetProperties", "ncclNet", "ncclCollNet", "ncclNetSGE")
# By table version: a wheel with NVIDIA's header, and abi.h's names of the structs in the header.
_TABLES = {
    6: ("2.18.3", "PropertiesV6", "NetV6", "CollNetV6<PropertiesV6>"),
    7: ("2.19.3", "PropertiesV7", "NetV7", "CollNetV6<PropertiesV7>"),
    8: ("2.23.4", "PropertiesV8", "NetV8", "CollNetV8", "Sge<uint32_t>"),
}
# Members that have another name in abi.h, apart from the spelling.
_OTHERWISE = {
    "maxRecvs": "max_receives",
    "netDeviceType": "device_type",
    "netDeviceVersion": "device_version",
}

_ABI = ROOT / "nccl_plugin" / "abi.h"
_RESULTS = {
    "Success": structs.SUCCESS,
    "InvalidArgument": structs.INVALID_ARGUMENT,
    "InvalidUsage": structs.INVALID_USAGE,
    "RemoteError": structs.REMOTE_ERROR,
}
_OF_NETS = {
    "NCCL_PTR_HOST": "kHost",
    "NCCL_PTR_CUDA": "kCuda",
    "NCCL_PTR_DMABUF": "kDmaBuf",
    "NCCL_NET_HANDLE_MAXSIZE": "kHandleBytes",
}

# By NVIDIA's name of a member: "offset size"; the size of a function is "result(arguments)".
Shapes = dict[str, str]


def _snake(name: str) -> str:
    return _OTHERWISE.get(name) or re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def _structs(version: int) -> dict[str, type[ctypes.Structure]]:
    """Our declarations in Python, by NVIDIA's names of the structs."""
    made = (
        structs.properties(version),
        structs.net_table(version),
        structs.coll_table(version, structs.sge(version)),
        structs.sge(version),
    )
    return dict(zip(_THEIRS[: len(_TABLES[version]) - 1], made, strict=False))


def _in_python(structs: dict[str, type[ctypes.Structure]]) -> Shapes:
    """Python declares functions that it never calls as plain pointers: they have no size here."""
    found = {}
    for struct, layout in structs.items():
        found[struct] = str(ctypes.sizeof(layout))
        for member, type_, *_ in layout._fields_:
            size = "" if type_ is ctypes.c_void_p else f" {_size(type_)}"
            found[f"{struct}.{member}"] = f"{getattr(layout, member).offset}{size}"
    return found


def _size(type_: Any) -> str:
    if not hasattr(type_, "_argtypes_"):
        return str(ctypes.sizeof(type_))
    arguments = ",".join(str(ctypes.sizeof(argument)) for argument in type_._argtypes_)
    return f"{ctypes.sizeof(type_._restype_)}({arguments})"


def _rows(types: dict[str, str], members: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Statements that print layouts. ``types``: the type for each of NVIDIA's struct names;
    ``members``: (struct, NVIDIA's name, name in the type)."""
    yield from (f"using {struct}_ = {type_};" for struct, type_ in types.items())
    yield from (f'std::printf("{struct}: %zu\\n", sizeof({struct}_));' for struct in types)
    yield from (
        f'row<decltype({s}_::{ours})>("{s}.{theirs}", offsetof({s}_, {ours}));'
        for s, theirs, ours in members
    )


def _printed(header: Path, folder: Path, rows: Iterable[str]) -> Shapes:
    """The output of a program that includes the header and runs these statements."""
    for name, text in _STUBS.items():
        (folder / name).write_text(text)
    source, program = folder / f"{header.stem}.cc", folder / header.stem
    source.write_text(_PROGRAM.format(header=header, rows="\n".join(rows)))
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None, "needs a C++ compiler"
    command = [compiler, "-std=c++17", f"-I{folder}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    told = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return dict(line.split(": ", 1) for line in told.splitlines())


def _header(version: str, name: str) -> Path:
    path = nccl_wheels.headers(version) / name
    if not path.exists():
        pytest.skip(f"{path} is not there: make test-nccl")
    return path


@pytest.mark.parametrize("version", sorted(_TABLES))
def test_both_restatements_are_laid_out_as_nvidias_header(version: int, tmp_path: Path) -> None:
    wheel, *ours = _TABLES[version]
    header, structs = _header(wheel, "nccl_net.h"), _structs(version)
    names = [(s, member) for s, layout in structs.items() for member, *_ in layout._fields_]
    their_rows = _rows(
        {struct: f"{struct}_v{version}_t" for struct in structs},
        [(struct, name, name) for struct, name in names],
    )
    our_rows = _rows(
        dict(zip(structs, ours, strict=True)),
        [(struct, name, _snake(name)) for struct, name in names],
    )
    theirs = _printed(header, tmp_path, their_rows)
    assert _printed(_ABI, tmp_path, our_rows) == theirs
    in_python = _in_python(structs)
    for name, shape in in_python.items():
        assert shape in (theirs[name], theirs[name].split()[0]), name


def _number_rows(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Statements that print numbers, given as (NVIDIA's name, our name)."""
    for theirs, ours in names:
        yield f'std::printf("{theirs}: %d\\n", static_cast<int>({ours}));'


def test_numbers_are_those_of_nvidias_headers(tmp_path: Path) -> None:
    types = [name.capitalize().replace("_", "").removesuffix("fn") for name in structs.TYPES]
    words = [*types, *(name.title() for name in structs.OPS), *_RESULTS]
    of_nccl = [(f"nccl{word}", f"k{word}") for word in words]
    for header, names in (
        (_header("2.32.3", "nccl.h"), of_nccl),
        (_header("2.23.4", "nccl_net.h"), list(_OF_NETS.items())),
    ):
        theirs = _printed(header, tmp_path, _number_rows((name, name) for name, _ in names))
        assert _printed(_ABI, tmp_path, _number_rows(names)) == theirs
        if names is of_nccl:
            in_python = [*range(len(structs.TYPES)), *range(len(structs.OPS)), *_RESULTS.values()]
            assert [int(theirs[name]) for name, _ in names] == in_python
