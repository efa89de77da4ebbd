"""Facts about the machine, which every result contains."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).resolve().parents[1]


class CpuTime(NamedTuple):
    """Seconds of all cores since the machine started."""

    busy: float
    total: float

    def since(self, earlier: CpuTime) -> CpuTime:
        """The time between an earlier value and this one."""
        return CpuTime(self.busy - earlier.busy, self.total - earlier.total)


def cpu_time() -> CpuTime:
    """CPU time so far. Busy is all time except idle and iowait; stolen time counts as busy."""
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(field) for field in line.split()[1:9]]
    total = sum(ticks)
    second = os.sysconf("SC_CLK_TCK")
    return CpuTime((total - ticks[3] - ticks[4]) / second, total / second)


def facts() -> dict[str, Any]:
    """Commit, CPU, kernel, versions and load for the context line of a run."""
    return {
        "commit": commit(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "torch", "mpi4py", "uvloop")},
        "load": load(),
    }


def load() -> list[float]:
    """The mean number of runnable processes over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def commit() -> str:
    """The short hash of the commit, with ``-dirty`` if tracked files differ from the commit."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
