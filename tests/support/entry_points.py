"""The entry points of an installation, for programs that a test runs on our sources."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def declare(folder: Path) -> None:
    """Write our entry points to a folder; they are found if the folder is in PYTHONPATH."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, names in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
    info = folder / "reducer_sources-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reducer-sources\nVersion: 1\n")
