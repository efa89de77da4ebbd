"""The environment as NCCL and its plugin see it: the process's variables, then NCCL's files."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

_SYSTEM_FILE = Path("/etc/nccl.conf")


def read(addresses: str | None = None, **defaults: str) -> dict[str, str]:
    """All variables. Unset variables get values from NCCL's files, then from ``defaults``.

    Like NCCL, this function sets the variables in the environment of this process. The plugin reads
    them there, and child processes inherit them. ``addresses`` are those of the reducers.
    """
    if addresses is not None:
        os.environ["REDUCER_ADDRS"] = addresses
    for path in _files():
        for name, value in _assignments(path):
            os.environ.setdefault(name, value)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return dict(os.environ)


def _files() -> list[Path]:
    named = os.environ.get("NCCL_CONF_FILE")
    if named:
        return [Path(named), _SYSTEM_FILE]
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir  # NCCL ignores HOME
    except KeyError:
        return [_SYSTEM_FILE]
    return [Path(home) / ".nccl.conf", _SYSTEM_FILE]


def _assignments(path: Path) -> Iterator[tuple[str, str]]:
    """The assignments of a file, without LD_...

    The dynamic loader has read LD_... long before NCCL reads the file.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name and not name.startswith(("#", "LD_")):
            yield name, value
