"""``import torch`` registers our backend, and imports nothing else of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import environment

pytest.importorskip("torch")

ENTRY_POINTS = "[torch.backends]\nreducer = reducer_client.torch_autoload:register\n"
PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
print(json.dumps([dist.is_backend_available("reducer"), sorted(sys.modules)]))
"""


def test_torch_finds_the_backend_and_imports_little(tmp_path: Path) -> None:
    info = tmp_path / "reducer_entry_point-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reducer-entry-point\nVersion: 1\n")
    env = environment()
    env["PYTHONPATH"] += f":{tmp_path}"
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found, modules = json.loads(ended.stdout)
    assert found
    ours = [name for name in modules if name.split(".")[0] in ("reducer", "reducer_client")]
    assert ours == ["reducer_client", "reducer_client.torch_autoload"]


def test_the_entry_point_is_the_declared_one() -> None:
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."torch.backends"]\n'
        + ENTRY_POINTS.split("\n")[1].replace("= ", '= "')
        + '"'
        in pyproject
    )
