"""Checks whether the data path runs compiled, and whether the compiled modules match the sources.

The build compiles the modules that handle contributions with mypyc (reducer/native/mypyc.cmake
lists them). A build without native parts interprets the same files. In an editable install a source
can change after it was compiled.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path

import reducer
from reducer.wire.errors import InternalError


def is_compiled() -> bool:
    """False for a build without native parts and for a plain checkout."""
    return bool(_sources())


def check_sources() -> None:
    """Raises InternalError if a source has changed since it was compiled."""
    folder = Path(reducer.__file__).parents[1]
    for name, digest in _sources().items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise InternalError(f"{name} has changed since it was compiled: run make venv")


def _sources() -> dict[str, str]:
    """The SHA-256 of each compiled source by path."""
    try:
        generated = import_module("reducer._compiled")
    except ModuleNotFoundError:
        return {}
    sources: dict[str, str] = generated.SOURCES
    return sources
