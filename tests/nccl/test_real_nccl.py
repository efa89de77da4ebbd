"""Real NCCL finds the plugin and its tables, as far as it goes without a GPU (`make test-nccl`).

NCCL 2.18 to 2.21 load the net plugin in ncclGetUniqueId. Later versions need a GPU for this, and
all versions need a GPU to load the tuner. Without a GPU, the tests compare the table names in the
library with `reducer_tools.nccl.versions`.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reducer_tools.nccl.versions import from_code, library_names, parse_version, tables, tuners
from tests.support import cuda, libnccl, nccl_wheels
from tests.support.cluster import ROOT
from tests.support.libraries import compile_library
from tests.support.nccl_log import complaints
from tests.support.plugin import NCCL_PLUGIN

pytestmark = pytest.mark.nccl


def _library(version: str) -> Path:
    path = nccl_wheels.library(version)
    if not path.exists():
        pytest.skip(f"NCCL {version} is not in {nccl_wheels.FOLDER}: make test-nccl")
    return path


class Probe:
    """The output of tests.support.nccl_probe for one libnccl, with NCCL's and the linker's logs."""

    def __init__(self, version: str, plugins: Path, name: str, scratch: Path) -> None:
        log = scratch / "nccl.log"
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(plugins),
            "LD_DEBUG": "libs,symbols",
            "LD_DEBUG_OUTPUT": str(scratch / "linker"),
            "NCCL_NET_PLUGIN": name,
            "NCCL_COLLNET_ENABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
            "NCCL_DEBUG_FILE": str(log),
        }
        command = [sys.executable, "-m", "tests.support.nccl_probe", str(_library(version))]
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        self.said = json.loads(ended.stdout.splitlines()[-1])
        assert from_code(self.said["version"]) == parse_version(version)
        self.log = log.read_text(encoding="utf-8")
        self.tried: list[str] = []  # files that dlopen looked for
        self.asked: dict[str, bool] = {}  # tables that dlsym looked for: found or not
        for path in scratch.glob("linker.*"):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line, name)

    def _read(self, line: str, name: str) -> None:
        if match := re.search(r"find library=(\S+) ", line):
            self.tried += [match[1]] if name in match[1] else []
        elif match := re.search(r"symbol=(nccl\w+Plugin_v\d+);", line):
            self.asked[match[1]] = True
        elif match := re.search(r"undefined symbol: (nccl\w+Plugin_v\d+)", line):
            self.asked[match[1]] = False


@pytest.mark.parametrize("version", nccl_wheels.LOAD_A_PLUGIN)
def test_the_plugin_is_loaded_and_its_newest_tables_are_taken(version: str, tmp_path: Path) -> None:
    probe = Probe(version, NCCL_PLUGIN.parent, "reducer", tmp_path)
    assert probe.said["mapped"] == [str(NCCL_PLUGIN)]
    assert not complaints(probe.log), probe.log
    newest = tables(parse_version(version))[0]
    assert probe.asked == {f"ncclNetPlugin_v{newest}": True, f"ncclCollNetPlugin_v{newest}": True}


@pytest.mark.parametrize("version", nccl_wheels.LOAD_A_PLUGIN)
def test_a_name_that_no_library_has_is_reported(version: str, tmp_path: Path) -> None:
    probe = Probe(version, NCCL_PLUGIN.parent, "nosuch", tmp_path)
    assert probe.said["mapped"] == []
    assert any("libnccl-net-nosuch.so" in line for line in complaints(probe.log)), probe.log
    assert probe.tried == library_names("nosuch", parse_version(version))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnccl-net-half.so that has only CollNet's tables."""
    tables = (f"char ncclCollNetPlugin_v{v}[256] = {{1}};" for v in range(4, 13))
    folder = tmp_path_factory.mktemp("half")
    return compile_library(folder / "libnccl-net-half.so", "\n".join(tables)).parent


@pytest.mark.parametrize("version", nccl_wheels.LOAD_A_PLUGIN)
def test_a_library_without_the_net_table_is_reported(
    version: str, half: Path, tmp_path: Path
) -> None:
    probe = Probe(version, half, "half", tmp_path)
    assert probe.said["mapped"] == []
    assert any("Failed to find ncclNetPlugin" in line for line in complaints(probe.log)), probe.log
    asked = {f"ncclNetPlugin_v{v}": False for v in tables(parse_version(version))}
    assert probe.asked == asked


@pytest.mark.parametrize("version", [*nccl_wheels.LOAD_A_PLUGIN, *nccl_wheels.LATER])
def test_nccl_knows_the_tables_that_we_say_it_knows(version: str) -> None:
    known: dict[str, set[int]] = {"Net": set(), "CollNet": set(), "Tuner": set()}
    with (
        _library(version).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for match in re.finditer(rb"nccl(Net|CollNet|Tuner)Plugin_v(\d+)\0", content):
            known[match[1].decode()].add(int(match[2]))
    wanted = set(tables(parse_version(version)))
    tuner = set(tuners(parse_version(version)))
    assert known == {"Net": wanted, "CollNet": wanted, "Tuner": tuner}


@pytest.mark.parametrize("version", nccl_wheels.LATER)
def test_later_versions_look_for_the_plugin_only_with_a_gpu(version: str, tmp_path: Path) -> None:
    probe = Probe(version, NCCL_PLUGIN.parent, "reducer", tmp_path)
    no_gpu = cuda.absence()
    failed = probe.said["join"] == libnccl.UNHANDLED_CUDA_ERROR
    assert failed == bool(no_gpu), no_gpu or "NCCL does not run on this GPU"
    if no_gpu:
        assert probe.asked == {}
    else:
        newest = tables(parse_version(version))[0]
        assert probe.asked.get(f"ncclNetPlugin_v{newest}"), probe.log
