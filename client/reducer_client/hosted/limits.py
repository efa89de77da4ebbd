"""What a hosted reducer may take from a machine that trains."""

from __future__ import annotations

import os
from pathlib import Path

from reducer.cores import usable_cores
from reducer.system_files import read_text

_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
# Cores for one lane: the rest computes gradients.
_CORES_FOR_A_LANE = 8
_MOST_LANES = 8
# Memory of a worker on a lane: its credit and the results for it (4 MiB each, see
# `server.serve_options`), its records (8 MiB), and as much again for what grows with the rounds.
_BYTES_FOR_A_WORKER = 32 << 20
_LEAST_BYTES = 256 << 20
_PART_OF_MEMORY = 8


def lanes_beside_workers() -> int:
    """A lane for every 8 cores that this process may use, at least one."""
    return max(1, min(_MOST_LANES, usable_cores() // _CORES_FOR_A_LANE))


def memory_beside_workers(world_size: int, lanes: int) -> int:
    """Bytes for the budget of the reducer: enough for all workers, at most an eighth of all memory.

    In a container "all memory" is its limit.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limit = read_text(_MEMORY_LIMIT)
    limits += [int(limit)] if limit.isdigit() else []
    wanted = max(_LEAST_BYTES, lanes * world_size * _BYTES_FOR_A_WORKER)
    return max(1 << 20, min(wanted, min(limits) // _PART_OF_MEMORY))
