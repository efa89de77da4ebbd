"""Horovod's own tests of its operations, on two ranks that find our modules under its names."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import reducer_client
from tests.outside.cases import Cases, UnavailableError, read_cases

WORLD = 2
TIMEOUT = 1800.0
ROOT = Path(__file__).parents[2]
# Helpers of Horovod's tests; they hold no operations.
HELPERS = ("horovod/runner/util/threads.py", "horovod/tensorflow/util.py")
# The tests use a private name of Horovod's, and a package that the standard library has.
OURS = {
    "horovod/__init__.py": "",
    "horovod/runner/__init__.py": "",
    "horovod/runner/util/__init__.py": "",
    "horovod/torch.py": (
        "import sys\nimport reducer_client.horovod as ours\nsys.modules[__name__] = ours\n"
    ),
    "horovod/tensorflow/__init__.py": (
        "import reducer_client.horovod.tensorflow as ours\n"
        "from tensorflow import executing_eagerly as _executing_eagerly\n"
        "def __getattr__(name):\n"
        "    return getattr(ours, name)\n"
    ),
    "mock.py": "from unittest.mock import *\n",
}


def run_torch(folder: Path) -> list[Cases]:
    return _run("test_torch.py", folder, "torch")


def run_tensorflow(folder: Path) -> list[Cases]:
    return _run("test_tensorflow.py", folder, "tensorflow")


def _run(test: str, folder: Path, *needs: str) -> list[Cases]:
    """The cases of each rank."""
    source = _find_source(test)
    for name in (*needs, "cloudpickle"):
        if importlib.util.find_spec(name) is None:
            raise UnavailableError(f"{name} is not installed; make test-frameworks installs it")
    shim = folder / "shim"
    for name, text in OURS.items():
        (shim / name).parent.mkdir(parents=True, exist_ok=True)
        (shim / name).write_text(text)
    for name in HELPERS:
        shutil.copy(source / name, shim / name)
    with reducer_client.local_reducers(2) as addresses:
        variables = {
            "HOROVOD_SIZE": str(WORLD),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{shim}{os.pathsep}{ROOT}",
            "REDUCER_ADDRS": ",".join(addresses),
            "REDUCER_JOB": f"outside-{test}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        ranks = [
            _start(source / "test/parallel" / test, r, folder, variables) for r in range(WORLD)
        ]
        try:
            for rank in ranks:
                rank.wait(TIMEOUT)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return [read_cases(folder / f"rank{rank}.jsonl") for rank in range(WORLD)]


def _find_source(test: str) -> Path:
    given = os.environ.get("HOROVOD_SOURCE", "")
    if not given:
        raise UnavailableError(
            "HOROVOD_SOURCE is not set: expected a checkout of Horovod's repository"
        )
    source = Path(given).resolve()
    if not (source / "test/parallel" / test).exists():
        raise UnavailableError(f"HOROVOD_SOURCE={given}: no test/parallel/{test} there")
    return source


def _start(
    test: Path, rank: int, folder: Path, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    record = folder / f"rank{rank}.jsonl"
    own = {"HOROVOD_RANK": str(rank), "RECORD_CASES": str(record)}
    record.unlink(missing_ok=True)
    options = ["-q", "-c", os.devnull, "--timeout", "300", "--rootdir", str(folder)]
    plugins = ["-p", "no:cacheprovider", "-p", "tests.outside.record"]
    with open(folder / f"rank{rank}.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *plugins, str(test)],
            env=os.environ | variables | own,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
