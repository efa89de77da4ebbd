"""The newest version in the changelog, the package's and the distribution's are equal."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import reducer

ROOT = Path(__file__).parents[3]


def test_newest_entry_is_the_version() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == reducer.__version__
    assert versions == sorted(versions, key=lambda v: [*map(int, v.split("."))], reverse=True)


def test_distribution_has_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == reducer.__version__
