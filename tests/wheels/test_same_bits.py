"""The kernels, the codecs and the daemon of a wheel pass the tests that ours pass.

The tests run with the wheel for the Python that runs this test, in a venv that also sees the
packages of the tests. Their tree has no sources of our packages, which would come first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.cluster import ROOT
from tests.wheels.conftest import python_of

TESTS = ("tests/unit/kernels", "tests/unit/wire", "tests/net", "tests/e2e/test_collectives.py")
# These need parts of the engine, which a wheel has not.
NOT_IN_A_WHEEL = [
    f"--ignore=tests/unit/wire/{name}.py" for name in ("test_handshake", "test_protocol_versions")
]
WHERE = """
import reducer.kernels._native, reducer_client._engine
print(reducer.kernels._native.__file__, reducer_client._engine.__file__)
"""


def venv_with(wheel: Path, folder: Path) -> Path:
    """The interpreter of a venv with the wheel, which also sees the packages of this Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib"))
    (folder / packages.relative_to(sys.prefix) / "beside.pth").write_text(f"{packages}\n")
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True)
    return python


def tree(folder: Path) -> Path:
    """The tests and their data, without the sources of the packages."""
    for name in ("tests", "bench"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_tests_pass_with_the_wheel(wheel: Path, tmp_path: Path) -> None:
    if python_of(wheel) != sysconfig.get_python_version():
        pytest.skip("the packages that the tests need are those of another Python")
    python = venv_with(wheel, tmp_path / "venv")
    place = tree(tmp_path / "tree")
    found = subprocess.run(
        [python, "-c", WHERE], cwd=place, capture_output=True, text=True, check=True
    )
    assert all(path.startswith(str(tmp_path / "venv")) for path in found.stdout.split())
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *TESTS]
    subprocess.run([*command, *NOT_IN_A_WHEEL], cwd=place, check=True)
