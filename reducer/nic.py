"""Finds the network interface of an address, and the address and rate of an interface."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from reducer.system_files import read_text

_SIOCGIFADDR: Final = 0x8915  # linux/sockios.h
_ANYWHERE: Final = "00000000"


def interface_of(address: str) -> str:
    """The interface whose first address this is, or ""."""
    wanted = ipaddress.ip_address(address)
    if wanted.is_loopback:
        return "lo"
    if isinstance(wanted, ipaddress.IPv6Address):
        return _interface_of_v6(wanted)
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if _ipv4_of(name) == str(wanted)), "")


def address_of(interface: str) -> str:
    """The first IPv4 address of an interface, else its first IPv6 address, or ""."""
    rows = (line.split() for line in _lines("/proc/self/net/if_inet6"))
    found = (str(ipaddress.IPv6Address(int(row[0], 16))) for row in rows if row[-1] == interface)
    return _ipv4_of(interface) or next(found, "")


def address_toward(host: str) -> str:
    """The local address from which the system reaches a host, or "". No packet is sent."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    return ""


def gbps_of(interface: str) -> float:
    """The rate of an interface's link in Gbit/s; 0 if the driver does not know it."""
    try:
        return max(0.0, int(read_text(Path("/sys/class/net", interface, "speed"))) / 1000)
    except ValueError:
        return 0.0


def interface_to_serve(host: str) -> str:
    """The interface on which a server with this ``--host`` gets most of its traffic, or "".

    For an address of all interfaces it is the interface of the IPv4 default route.
    """
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""
    if ipaddress.ip_address(address).is_unspecified:
        return default_interface(_lines("/proc/self/net/route"))
    return interface_of(address)


def default_interface(routes: Iterable[str]) -> str:
    """The interface of the default route with the least metric in a table of IPv4 routes, or ""."""
    rows = (line.split() for line in routes)
    # Interface, destination, gateway, flags, two counters, metric, mask.
    found = [(int(row[6]), row[0]) for row in rows if row[1:2] == row[7:8] == [_ANYWHERE]]
    return min(found)[1] if found else ""


def _ipv4_of(interface: str) -> str:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:  # the interface has no IPv4 address
            return ""


def _interface_of_v6(wanted: ipaddress.IPv6Address) -> str:
    rows = (line.split() for line in _lines("/proc/self/net/if_inet6"))
    return next((row[-1] for row in rows if int(row[0], 16) == int(wanted)), "")


def _lines(path: str) -> list[str]:
    return read_text(Path(path)).splitlines()
