"""Tests whether this machine reaches the hosted reducers."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from reducer.cluster.addresses import split_address

_MOST_AT_ONCE = 32


def find_unreachable(addresses: Sequence[str], seconds: float) -> dict[str, str]:
    """The addresses that accept no connection within ``seconds``, and why."""
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(min(len(addresses), _MOST_AT_ONCE)) as pool:
        found = pool.map(lambda address: _why_not(address, deadline), addresses)
        return {address: why for address, why in zip(addresses, found, strict=True) if why}


def _why_not(address: str, deadline: float) -> str:
    host, port = split_address(address)
    left = max(0.1, deadline - time.monotonic())
    try:
        socket.create_connection((host.strip("[]"), port), left).close()
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    return ""
