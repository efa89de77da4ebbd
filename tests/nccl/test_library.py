"""The symbols that libnccl-net-reducer.so exports and needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from reducer_tools.nccl.structs import VERSIONS
from tests.support.cluster import ROOT
from tests.support.plugin import NCCL_PLUGIN

Version = tuple[int, ...]

# The newest function of glibc that the engine calls is getrandom.
OWN_FLOOR: Version = (2, 25)
# Symbols of later versions that come from the build machine's compiler and glibc headers: glibc has
# given functions of pthread and stat new versions, and the compiler's libraries use what its glibc
# has.
OF_THE_BUILD = re.compile(
    r"pthread_\w+|__pthread_\w+|[fl]?stat(64)?|dl\w+|sem_\w+|__libc_single_threaded"
    r"|_dl_find_object|__isoc23_\w+"
)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _needs() -> dict[str, Version]:
    """The glibc symbols that the plugin needs, with their versions."""
    found = re.findall(
        r"(\w+)@+GLIBC_([\d.]+)", _output("readelf", "-W", "--dyn-syms", str(NCCL_PLUGIN))
    )
    return {symbol: tuple(map(int, version.split("."))) for symbol, version in found}


def test_only_the_tables_are_exported() -> None:
    names = {
        line.split()[-1]
        for line in _output("nm", "-D", "--defined-only", str(NCCL_PLUGIN)).splitlines()
    }
    halves = {f"nccl{half}Plugin_v{v}" for half in ("Net", "CollNet") for v in VERSIONS}
    assert names == halves | {f"ncclTunerPlugin_v{v}" for v in range(1, 7)}


def test_it_needs_nothing_but_the_c_library_and_stays_loaded() -> None:
    dynamic = _output("readelf", "-d", str(NCCL_PLUGIN))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert needed
    assert all(re.match(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so", name) for name in needed)
    assert "NODELETE" in dynamic


def test_nothing_of_our_own_needs_a_newer_glibc_than_the_engine_does() -> None:
    newer = {symbol: version for symbol, version in _needs().items() if version > OWN_FLOOR}
    ours = {symbol for symbol in newer if not OF_THE_BUILD.fullmatch(symbol)}
    assert not ours, f"{ours} of {newer}: glibc 2.25 has no such function"


def test_the_build_tells_the_glibc_that_it_needs() -> None:
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    assert cmake is not None, "needs CMake"
    script = ROOT / "nccl_plugin" / "glibc_floor.cmake"
    command = [cmake, "-D", "READELF=readelf", "-D", f"LIBRARY={NCCL_PLUGIN}", "-P", str(script)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    needs = _needs()
    floor = max(needs.values())
    because = {symbol for symbol, version in needs.items() if version == floor}
    matched = re.fullmatch(r"libnccl-net-reducer\.so needs glibc >= ([\d.]+) \((.*)\)\s*", told)
    assert matched is not None, told
    assert matched[1] == ".".join(map(str, floor))
    assert set(matched[2].split(", ")) == because
