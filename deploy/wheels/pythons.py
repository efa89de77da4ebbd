"""Finds the Pythons of this machine that can build a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# Prints the interpreter itself: what is on PATH may be a script of pyenv.
_IF_IT_CAN_BUILD = """
import ensurepip, os, sys, sysconfig, venv
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print(os.path.realpath(sys.executable))
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
    return next(filter(None, map(_able, places)), None)


def _able(python: Path) -> Path | None:
    """The interpreter, if it can build a wheel."""
    command = [str(python), "-c", _IF_IT_CAN_BUILD]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(ran.stdout.strip())
