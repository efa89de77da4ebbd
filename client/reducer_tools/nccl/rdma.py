"""What a machine's RDMA devices lose where NCCL takes the plugin: it has one net for everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reducer_tools.nccl.verdict import Row

_DEVICES = Path("/sys/class/infiniband")


def lost(folder: Path = _DEVICES) -> str:
    """A sentence that names the devices; empty where there is none."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ""
    if not names:
        return ""
    return (
        f"with the plugin NCCL leaves RDMA ({', '.join(names)}) unused: other collectives than "
        "all-reduce go over TCP, too"
    )


def rows(folder: Path = _DEVICES) -> Iterator[Row]:
    if text := lost(folder):
        yield Row("environment", "note", text, "the plugin is for clusters with plain Ethernet")
