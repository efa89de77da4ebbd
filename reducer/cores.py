"""The cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """How many cores this process may use: its affinity, and in a container its cgroup's quota.

    A container sees its own cgroup as the root. Outside containers the root has no quota, and a
    quota that systemd sets (CPUQuota=) is not found: set --lanes there.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores
