"""How busy this machine's cores are."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class CpuTime(NamedTuple):
    """Ticks of all cores since the machine started."""

    busy: int
    total: int

    def busy_since(self, earlier: CpuTime) -> float:
        """The share of the time between an earlier value and this one."""
        return (self.busy - earlier.busy) / max(1, self.total - earlier.total)


def cpu_time() -> CpuTime:
    """CPU time so far. All time is busy except idle and iowait; stolen time is busy."""
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(field) for field in line.split()[1:9]]
    return CpuTime(sum(ticks) - ticks[3] - ticks[4], sum(ticks))
