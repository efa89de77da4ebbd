"""What a wheel contains, and what its libraries need and export."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import reducer
from reducer_tools.nccl.installed import PLUGIN
from tests.support.cluster import ROOT
from tests.wheels.conftest import python_of

OF_GLIBC = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d")


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def libraries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return sorted(folder.rglob("*.so"))


def test_the_wheel_is_of_this_release_and_for_old_machines(wheel: Path) -> None:
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version) == ("open_reduction_server", reducer.__version__)
    assert python == abi == f"cp{python_of(wheel).replace('.', '')}"
    glibc = re.search(r"manylinux_2_(\d+)_", platform)
    assert glibc and int(glibc[1]) <= 28
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"{name}-{version}.dist-info/METADATA"))
    assert metadata["Version"] == reducer.__version__


def test_auditwheel_agrees_with_the_name(wheel: Path) -> None:
    shown = _output(sys.executable, "-m", "auditwheel", "show", wheel)
    consistent = re.search(r'platform tag:\s+"manylinux_2_(\d+)_', shown)
    assert consistent, shown
    assert int(consistent[1]) <= 28


def test_the_wheel_has_every_compiled_part(libraries: list[Path]) -> None:
    names = {path.name.split(".")[0] for path in libraries}
    assert {"_native", "_engine", "reducer__mypyc", "round", "executor"} <= names
    assert [path.parts[-4:-1] for path in libraries if path.name == PLUGIN] == [
        ("reducer_tools", "nccl", "lib")
    ]


def test_the_libraries_need_nothing_but_glibc(libraries: list[Path]) -> None:
    for library in libraries:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "-d", library))
        assert not [name for name in needed if not OF_GLIBC.fullmatch(name)], library.name


def test_the_libraries_export_only_what_is_looked_for(libraries: list[Path]) -> None:
    """The C++ library inside must not meet the one that libtorch needs."""
    for library in libraries:
        lines = _output("nm", "-D", "--defined-only", library).splitlines()
        expected = r"nccl\w+Plugin_v\d+" if library.name == PLUGIN else r"PyInit_\w+"
        exported = [line.split()[-1] for line in lines]
        assert exported
        assert all(re.fullmatch(expected, name) for name in exported), (library.name, exported)


def test_the_sdist_has_all_sources() -> None:
    (archive,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as content:
        inside = {name.partition("/")[2] for name in content.getnames()}
    tracked = _output("git", "-C", ROOT, "ls-files", "reducer", "client", "nccl_plugin").split()
    assert set(tracked) <= inside
    assert not [name for name in inside if name.endswith((".so", ".o"))]
