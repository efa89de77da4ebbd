"""Each wheel, installed where there is no compiler, trains two ranks over `reducer serve`.

The programs and the commands are those of the documents. PyTorch is not downloaded: it is there
for the Python that runs the tests, and its program runs with the wheel for this Python alone.
"""

from __future__ import annotations

import re
import sysconfig
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import reducer
from reducer.kernels import _native
from reducer.version import PROTOCOL_VERSION
from tests.support.clean_place import CleanPlace
from tests.support.cluster import ROOT
from tests.support.console import consoles, moved, write_programs
from tests.wheels.conftest import python_of

LIMIT = 60.0  # seconds from the beginning of the installation to the end of the training
# `set -e` does not see a failure in a condition.
INSTALL = """
set -eu
for tool in cc gcc c++ g++ clang ld as cmake; do
    if command -v $tool; then echo "there is a compiler"; exit 1; fi
done
$PYTHON -m venv venv
venv/bin/python -m pip install --quiet --no-index --find-links $DEPENDENCIES $DIST/WHEEL
PATH=$PWD/venv/bin:$PATH
export REDUCER_METRICS_PORT=0
reducer --version
python -c 'from reducer.kernels import _native; print(_native.levels())'
reducer nccl env --version 2.27.5 --addresses 127.0.0.1:2222
python -c 'import ctypes, reducer_tools.nccl.installed as i; ctypes.CDLL(str(i.find_plugin({})))'
"""
# Where INSTALL has run. The folder with torch is last on the path, so that only torch is used.
TORCH = """
set -eu
PATH=$PWD/venv/bin:$PATH
export REDUCER_METRICS_PORT=0
python -c '
import os, pathlib, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "torch.pth").write_text(os.environ["TORCH"])
'
"""


def training(page: str, folder: Path) -> str:
    """The commands of a page that start a reducer and two ranks; its program is in the folder."""
    path = ROOT / "docs" / page
    ports: dict[str, str] = {}
    write_programs(path, folder, lambda text: moved(text, ports))
    shown = [moved(line.command, ports) for line in consoles(path)]
    (serve,) = (line for line in shown if "reducer serve" in line)
    ranks = "\n".join(line for line in shown if "train.py" in line)
    ranks = ranks.replace("torchrun", "python -m torch.distributed.run")
    return f"{serve}\ndaemon=$!\n{ranks}\nkill $daemon\nwait $daemon\n"


def test_it_trains_two_ranks_without_a_compiler(
    wheel: Path, dependencies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = python_of(wheel)
    with_torch = python == sysconfig.get_python_version() and find_spec("torch") is not None
    readable = {"dist": wheel.parent, "dependencies": dependencies}
    place = CleanPlace(python, tmp_path, torch=Path(sysconfig.get_path("purelib")), **readable)
    if place.missing:
        pytest.skip(place.missing)
    place.prepare()
    script = INSTALL.replace("WHEEL", wheel.name) + training("index.md", tmp_path)
    began = time.monotonic()
    done = place.run(script)
    took = time.monotonic() - began
    assert done.returncode == 0, f"{place.name}\n{done.stdout}\n{done.stderr}"
    with capsys.disabled():
        print(f"\n{wheel.name} in {place.name}: {took:.0f} s to the end of the training")
    assert f"reducer {reducer.__version__}, wire protocol {PROTOCOL_VERSION}" in done.stdout
    assert str(_native.levels()) in done.stdout
    assert re.search(r"# plugin: .*/venv/lib/.*/libnccl-net-reducer\.so\n", done.stdout)
    assert "[1. 2. 3. 4. 5. 6. 7. 8.]" in done.stdout
    assert took < LIMIT
    if with_torch:
        done = place.run(TORCH + training("pytorch.md", tmp_path))
        assert done.returncode == 0, f"{place.name}\n{done.stdout}\n{done.stderr}"
        assert "loss 0." in done.stdout
