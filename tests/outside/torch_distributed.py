"""torch's own tests of torch.distributed on the backend ``"reducer"``: every torch has them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import reducer_client
from tests.outside.cases import Cases, UnavailableError, read_cases

WORLD = 4  # the most that one of the tests asks for
TIMEOUT = 3600.0
ROOT = Path(__file__).parents[2]


def run(folder: Path) -> list[Cases]:
    """The cases; the ranks of each are processes of its own."""
    for name in ("torch", "expecttest"):
        if importlib.util.find_spec(name) is None:
            raise UnavailableError(f"{name} is not installed: pip install {name}")
    record = folder / "cases.jsonl"
    record.unlink(missing_ok=True)
    cases = Path(__file__).with_name("torch_cases.py")
    options = ["-q", "-rs", "-c", os.devnull, "--noconftest", "--import-mode=importlib"]
    options += ["--timeout", "400", "--rootdir", str(ROOT)]
    plugins = ["-p", "no:cacheprovider", "-p", "tests.outside.record"]
    with reducer_client.local_reducers(2) as addresses, open(folder / "log", "wb") as log:
        variables = {
            "BACKEND": "reducer",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "RECORD_CASES": str(record),
            "REDUCER_ADDRS": ",".join(addresses),
            "REDUCER_JOB": "outside-torch",
            "TEMP_DIR": str(folder),
            "WORLD_SIZE": str(WORLD),
        }
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *plugins, str(cases)],
            env=os.environ | variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            timeout=TIMEOUT,
            check=False,
        )
    return [read_cases(record)]
