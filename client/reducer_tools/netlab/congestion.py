"""The TCP congestion control of the hosts of a lab.

Every host has the same one, and so have all compared programs. A namespace may use only the
machine's ``tcp_allowed_congestion_control``; a lab adds its choice to that list first. If the list
is read-only, as in a container, all hosts keep the kernel's default.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reducer_tools.netlab.commands import LabError

DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def allow_congestion(name: str, list_: Path = _ALLOWED) -> str:
    """Allow namespaces to use ``name`` and return it; return the default if that is not possible.

    The name stays in the list, since another lab may be about to use it. Raises `LabError` if the
    kernel does not have ``name``.
    """
    available = _AVAILABLE.read_text(encoding="ascii").split()
    if name not in available:
        raise LabError(f"congestion control {name!r}: this kernel has {', '.join(available)}")
    allowed = list_.read_text(encoding="ascii").split()
    if name in allowed:
        return name
    try:
        list_.write_text(" ".join([*allowed, name]), encoding="ascii")
    except OSError as error:
        default = DEFAULT.read_text(encoding="ascii").strip()
        print(
            f"netlab: all hosts use {default}, the kernel's default: {name} is not in {list_}, "
            f"and nobody may write it here ({error.strerror})",
            file=sys.stderr,
        )
        return default
    return name
