"""Finds the reducers on this machine, by their ports for workers."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from reducer.cluster.addresses import join_address
from reducer.system_files import read_text

# An abstract name begins with a zero byte, which /proc/net/unix shows as @.
_MARK = "@open-reduction-server-at/"  # `reducer.server.sockets.announce`
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def find_here() -> list[str]:
    """Their addresses, sorted."""
    return addresses_in(read_text(Path("/proc/net/unix")))


def addresses_in(names: str) -> list[str]:
    """The addresses in the text of /proc/net/unix.

    >>> addresses_in("0: 2 0 0 1 01 9 @open-reduction-server-at/0.0.0.0:2222")
    ['127.0.0.1:2222']
    """
    marked = (line.partition(_MARK)[2].strip() for line in names.splitlines())
    return sorted({address for name in marked if (address := _address(name))})


def _address(name: str) -> str:
    """The address in a name; "" if the name has none. Any user may bind any name."""
    host, _, port = name.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
    except ValueError:
        return ""
    text = _LOOPBACK.get(str(ip), str(ip))
    return join_address(text, number)
