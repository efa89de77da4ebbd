"""Limits on the descriptors of a process (RLIMIT_NOFILE).

Law: neither strangers nor one job can take all descriptors. The rest serves to start lanes and to
answer on the metrics port.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
from collections.abc import Sequence

# The most sockets that wait for their preface. As many again may wait for a lane.
MAX_WAITING = 4096
# Errors of socket calls for lack of memory on this machine.
NO_MEMORY = (errno.ENOMEM, errno.ENOBUFS)


def raise_limit() -> None:
    """Raise the soft limit, often only 1,024: every worker has a connection to every lane."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_standard_ones() -> None:
    """Open /dev/null as each of descriptors 0 to 2 that is closed, so that no socket gets its
    number.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def room_for_newcomers(most: int) -> int:
    """How many connections without a proof a lane may have; as many again without a HELLO."""
    return min(most, limit() // 8)


def room_for_waiting() -> int:
    """How many sockets may wait for their preface; as many again may wait for lanes."""
    return min(MAX_WAITING, limit() // 4)


def passed(ancillary: Sequence[tuple[int, int, bytes]]) -> Sequence[int]:
    """The descriptors that came with a message on a Unix socket, from recvmsg's ancillary data."""
    found = array.array("i")
    for _, _, data in ancillary:
        found.frombytes(data)
    return found
