"""How a process shares out the descriptors that it may open (RLIMIT_NOFILE).

Law: neither strangers nor one job can take all of them. What is left starts lanes, and answers on
the metrics port.
"""

from __future__ import annotations

import contextlib
import resource

# Sockets that wait: those whose preface has not come, and as many that no lane has taken.
MAX_WAITING = 4096


def raise_limit() -> None:
    """Every worker holds a connection to every lane; the soft limit is often only 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def room_for_newcomers(most: int) -> int:
    """How many connections a lane may have without a proof; as many more without a HELLO."""
    return min(most, limit() // 8)


def room_for_waiting() -> int:
    """How many sockets may wait for their preface; as many more may wait for lanes."""
    return min(MAX_WAITING, limit() // 4)
