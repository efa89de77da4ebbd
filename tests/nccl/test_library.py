"""What libnccl-net-reducer.so shows to the process that loads it."""

from __future__ import annotations

import re
import subprocess

from bench.fleet import NCCL_PLUGIN
from reducer.nccl.layouts import VERSIONS


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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
    assert all(re.match(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so", name) for name in needed)
    assert "NODELETE" in dynamic
