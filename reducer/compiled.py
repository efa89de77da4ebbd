"""Whether the path of a contribution runs compiled, and from the sources that lie here.

The build compiles it with mypyc (reducer/native/mypyc.cmake says what); without native parts the
same files are interpreted. In an editable install a source can change under its compiled module.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path

import reducer
from reducer.wire.errors import InternalError


def is_compiled() -> bool:
    """Of a build without native parts, or with a plain checkout: False."""
    return bool(_sources())


def check_sources() -> None:
    """Raises InternalError where the compiled modules are not those of the sources."""
    folder = Path(reducer.__file__).parents[1]
    for name, digest in _sources().items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise InternalError(f"{name} has changed since it was compiled: run make venv")


def _sources() -> dict[str, str]:
    """SHA-256 of each compiled source, by its path."""
    try:
        generated = import_module("reducer._compiled")
    except ModuleNotFoundError:
        return {}
    sources: dict[str, str] = generated.SOURCES
    return sources
