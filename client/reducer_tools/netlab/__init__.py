"""Hosts with limited NICs on one machine: network namespaces around a bridge.

    with Lab({"w0": Nic("1gbit"), "r0": Nic("1gbit")}) as lab:
        lab.popen("r0", ["reducer", "serve", "--host", lab.address("r0"), "--insecure"])

A lab needs root, or a user namespace in which this process is root (`isolate`).
"""

from __future__ import annotations

from reducer_tools.netlab.commands import LabError, run_tool
from reducer_tools.netlab.congestion import allow_congestion
from reducer_tools.netlab.isolation import enter, isolate
from reducer_tools.netlab.lab import Lab, clean, require_root
from reducer_tools.netlab.nic import PAYLOAD_SHARE, Nic

__all__ = [
    "PAYLOAD_SHARE",
    "Lab",
    "LabError",
    "Nic",
    "allow_congestion",
    "clean",
    "enter",
    "isolate",
    "require_root",
    "run_tool",
]
