"""Examines the limits of this host for a worker: versions, open files, NICs, TCP buffers."""

from __future__ import annotations

import os
import platform
import resource
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from reducer import __version__, compiled, kernels
from reducer.cores import usable_cores
from reducer.system_files import read_text
from reducer.version import PROTOCOL_VERSION
from reducer_tools.doctor import receive
from reducer_tools.doctor.findings import HERE, Finding, fault, warning

_NET = Path("/sys/class/net")
_SYSCTL = Path("/proc/sys/net")
# Open files besides the connections: of the program, its data loaders and its libraries.
_OWN_FILES = 256
# The kernel uses a part of a receive buffer for overhead (tcp_adv_win_scale).
_BUFFER_SHARE = 2


@dataclass(frozen=True)
class Nic:
    """A network interface; ``rate`` in bits per second, None if the driver does not report it."""

    name: str
    rate: float | None
    mtu: int


@dataclass
class Host:
    """The facts about this host to show, its NICs, and the findings."""

    name: str
    facts: dict[str, str] = field(default_factory=dict)
    nics: list[Nic] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def examine(interfaces: Iterable[str], connections: int, round_trip: float | None) -> Host:
    """Examine this host.

    Args:
        interfaces: the interfaces through which the reducers are reached.
        connections: the number of connections of a worker, one to each lane of each reducer.
        round_trip: the longest round trip time to a reducer in seconds; None if unknown.
    """
    host = Host(socket.gethostname())
    host.facts["release"] = _release(host)
    host.facts["system"] = (
        f"Python {platform.python_version()}, Linux {platform.release()}, {usable_cores()} cores"
    )
    _check_open_files(host, connections)
    host.facts["locked memory"] = _limit_text(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    host.nics = [nic for nic in map(read_nic, sorted(set(interfaces))) if nic is not None]
    for nic in host.nics:
        rate = "rate unknown" if nic.rate is None else f"{nic.rate / 1e9:g} Gbit/s"
        host.facts[f"NIC {nic.name}"] = f"{rate}, MTU {nic.mtu}"
        _check_receiving(host, nic, connections)
    host.facts["congestion control"] = _sysctl("ipv4/tcp_congestion_control") or "unknown"
    check_buffers(host, round_trip)
    return host


def read_nic(name: str) -> Nic | None:
    """Rate and MTU of an interface from sysfs; None if there is no such interface."""
    try:
        mtu = int((_NET / name / "mtu").read_text(encoding="ascii"))
    except OSError:
        return None
    try:
        megabits = int((_NET / name / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):  # loopback and most virtual interfaces
        megabits = 0
    return Nic(name, megabits * 1e6 if megabits > 0 else None, mtu)


def _release(host: Host) -> str:
    kind = kernels.load().NAME
    how = "compiled" if compiled.is_compiled() else "interpreted"
    if kind != "native":
        text = (
            "this installation has no native kernels: a reducer on this host would sum slowly; "
            "install the wheel for this Python, or install from a checkout without "
            "REDUCER_NO_NATIVE (this needs a C++17 compiler)"
        )
        host.findings.append(warning("slow-kernels", HERE, text))
    return (
        f"open-reduction-server {__version__} ({how}), protocol {PROTOCOL_VERSION}, {kind} kernels"
    )


def _check_open_files(host: Host, connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    host.facts["open files"] = f"{_limit_text(soft)} (at most {_limit_text(hard)})"
    needed = connections + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    text = (
        f"{soft:,} open files are allowed, and a worker needs about {needed:,}: {connections:,} "
        "connections, one to each lane of each reducer, and its own files. Raise the limit "
        "(ulimit -n, LimitNOFILE= of systemd)"
    )
    kind = fault if soft < connections else warning
    host.findings.append(kind("open-files", HERE, text))


def _check_receiving(host: Host, nic: Nic, connections: int) -> None:
    found = receive.read(nic.name)
    if found is None:
        return
    host.facts[f"NIC {nic.name}"] += f", {found}"
    advice = receive.advise(nic.name, nic.rate, found, connections, os.sched_getaffinity(0))
    host.findings += [advice] if advice else []


def check_buffers(host: Host, round_trip: float | None) -> None:
    """Compare the TCP buffers with rate x round trip, which one connection can have in flight."""
    rates = [nic.rate for nic in host.nics if nic.rate is not None]
    for name in ("tcp_rmem", "tcp_wmem"):
        found = _sysctl(f"ipv4/{name}")
        if not found:
            continue
        most = int(found.split()[-1])
        host.facts[name] = f"up to {most:,} bytes"
        if not rates or round_trip is None:
            continue
        wanted = int(_BUFFER_SHARE * max(rates) / 8 * round_trip)
        if most < wanted:
            text = (
                f"the maximum of net.ipv4.{name} is {most:,} bytes; one connection needs "
                f"{wanted:,} to fill a NIC of {max(rates) / 1e9:g} Gbit/s at a round trip of "
                f"{round_trip * 1000:.2f} ms: "
                f"sysctl -w net.ipv4.{name}='{' '.join(found.split()[:2])} {wanted}'"
            )
            host.findings.append(warning("small-buffers", HERE, text))


def _sysctl(name: str) -> str:
    return read_text(_SYSCTL / name)


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
