"""A folder for Ray alone, and the variables that keep Ray in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.wait import wait_until


@contextmanager
def ray_folder() -> Iterator[Path]:
    """The folder while the block runs. Afterwards no process may name it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: it is part of the names of Unix sockets
    try:
        yield folder
        wait_until(lambda: not _processes(folder), 15, "the end of Ray's processes")
    finally:
        shutil.rmtree(folder)


def ray_variables(folder: Path) -> dict[str, str]:
    """Variables that keep Ray on loopback and in the folder, and let Ray report nothing."""
    return {
        "RAY_TMPDIR": str(folder),
        "HOME": str(folder),  # Ray Train writes to ~/ray_results
        "RAY_USAGE_STATS_ENABLED": "0",
        # With 0, every node has the loopback address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


def _processes(folder: Path) -> list[str]:
    """The commands of processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # the process has ended
            continue
        if str(folder).encode() in command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found
