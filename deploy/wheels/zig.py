"""zig as a C and C++ compiler that knows old versions of glibc.

A library that gcc links needs the glibc of the machine that built it. zig has the symbols of every
glibc, and links its own C++ library into each library. No container with an old system is needed.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from importlib.metadata import version
from pathlib import Path

_ZIG = Path(sysconfig.get_path("purelib"), "ziglang", "zig")
GLIBC = "2.28"
# Without evex512, clang 21 refuses the intrinsics of AVX-512 in functions with that target.
_CPU = {"x86_64": "-mcpu=x86_64+evex512"}


def compilers(folder: Path) -> dict[str, str]:
    """Write the two compilers into ``folder``; the variables with which CMake takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = platform.machine()
    options = f"-target {machine}-linux-gnu.{GLIBC} {_CPU.get(machine, '')}"
    written = {}
    for variable, name, mode in (("CC", "clang", "cc"), ("CXX", "clang++", "c++")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {_ZIG} {mode} {options} "$@"\n')
        script.chmod(0o755)
        written[variable] = str(script)
    return {
        **os.environ,
        **written,
        "ZIG_GLOBAL_CACHE_DIR": str(folder / "cache"),
        "ZIG_LOCAL_CACHE_DIR": str(folder / "cache"),
        # For ccache: the scripts are new each time.
        "CCACHE_COMPILERCHECK": f"string:zig {version('ziglang')} {options}",
    }
