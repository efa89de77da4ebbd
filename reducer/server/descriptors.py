"""How a process shares out the descriptors that it may open (RLIMIT_NOFILE).

Law: neither strangers nor one job can take all descriptors. The rest starts lanes, and answers on
the metrics port.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
from collections.abc import Sequence

# Sockets that wait: those whose preface has not come, and as many that no lane has taken.
MAX_WAITING = 4096
# What a call for a socket fails with where it is this machine that lacks something.
NO_MEMORY = (errno.ENOMEM, errno.ENOBUFS)


def raise_limit() -> None:
    """Every worker holds a connection to every lane; the soft limit is often only 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_standard_ones() -> None:
    """Open /dev/null where one of the first three is closed: a socket of ours would be there."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def room_for_newcomers(most: int) -> int:
    """How many connections a lane may have without a proof; as many more without a HELLO."""
    return min(most, limit() // 8)


def room_for_waiting() -> int:
    """How many sockets may wait for their preface; as many more may wait for lanes."""
    return min(MAX_WAITING, limit() // 4)


def passed(ancillary: Sequence[tuple[int, int, bytes]]) -> Sequence[int]:
    """The descriptors that came with a message of a Unix socket, as recvmsg gives them."""
    found = array.array("i")
    for _, _, data in ancillary:
        found.frombytes(data)
    return found
