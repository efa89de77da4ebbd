"""Finds the Pythons of this machine that can build a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_CAN_BUILD = """
import ensurepip, os, sysconfig, venv
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
"""


def find(version: str) -> Path | None:
    """The interpreter on PATH, of pyenv or of uv, with its headers; None if there is none."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    uv = Path.home() / ".local" / "share" / "uv" / "python"
    installed = [*pyenv.glob(f"{version}.*"), *uv.glob(f"cpython-{version}.*")]
    on_path = shutil.which(name)
    places = [Path(on_path)] if on_path else []
    places += [folder / "bin" / name for folder in sorted(installed)]
    return next(filter(_can_build, places), None)


def _can_build(python: Path) -> bool:
    try:
        ran = subprocess.run([python, "-c", _CAN_BUILD], capture_output=True, check=False)
    except OSError:
        return False
    return ran.returncode == 0
