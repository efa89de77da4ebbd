"""Warns that NCCL with the plugin leaves RDMA devices unused, because NCCL uses only one net."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reducer_tools.nccl.report import Row

_DEVICES = Path("/sys/class/infiniband")


def unused_rdma(folder: Path = _DEVICES) -> str:
    """A sentence that names the RDMA devices that NCCL leaves unused; "" if there are none."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ""
    if not names:
        return ""
    return (
        f"with the plugin NCCL leaves RDMA ({', '.join(names)}) unused: all collectives go over TCP"
    )


def rows(folder: Path = _DEVICES) -> Iterator[Row]:
    if text := unused_rdma(folder):
        yield Row("environment", "note", text, "the plugin is for clusters with plain Ethernet")
