"""Reads the cores of this machine, and the NUMA nodes of cores and NICs, from /sys."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from reducer.nic import interface_to_serve
from reducer.server.pinning import Core, choose_cores
from reducer.system_files import read_text

SYS = Path("/sys")


def cores_for_lanes(host: str, lanes: int) -> list[int]:
    """The core of each lane of a daemon that listens on ``host``; see `choose_cores`."""
    node = nic_node(interface_to_serve(host))
    return choose_cores(read_cores(os.sched_getaffinity(0)), lanes, node)


def read_cores(numbers: Iterable[int], sys: Path = SYS) -> list[Core]:
    """The cores with these numbers. A core without an entry counts as a physical core."""
    return [_read_core(number, sys / f"devices/system/cpu/cpu{number}") for number in numbers]


def nic_node(interface: str, sys: Path = SYS) -> int | None:
    """The NUMA node of an interface; None for virtual interfaces, and where the kernel knows none.

    "" stands for an unknown interface.
    """
    node = read_text(sys / "class/net" / interface / "device/numa_node") if interface else ""
    return int(node) if node.isdecimal() else None  # -1: none


def _read_core(number: int, folder: Path) -> Core:
    nodes = [entry.name.removeprefix("node") for entry in folder.glob("node[0-9]*")]
    siblings = read_text(folder / "topology/thread_siblings_list")
    return Core(number, siblings or str(number), int(nodes[0]) if nodes else None)
