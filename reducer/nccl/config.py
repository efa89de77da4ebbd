"""The environment as NCCL and its plugin see it: the process's own, then NCCL's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_SYSTEM_FILE = Path("/etc/nccl.conf")


def read(**defaults: str) -> dict[str, str]:
    """All variables; what is unset is taken from NCCL's files, then from ``defaults``.

    NCCL puts what its files say into the environment of the process, where its plugin finds it. So
    does this, and processes that are started later have it, too.
    """
    for path in _files():
        for name, value in _assignments(path):
            os.environ.setdefault(name, value)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return dict(os.environ)


def _files() -> list[Path]:
    named = os.environ.get("NCCL_CONF_FILE")
    return [Path(named) if named else Path.home() / ".nccl.conf", _SYSTEM_FILE]


def _assignments(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name, value
