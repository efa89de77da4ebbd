"""Examines how the kernel spreads the received packets of a NIC over the cores.

Packets of a receive queue are handled on one core, the one that takes the queue's interrupt. RPS
hands them on to other cores, RFS to the core that reads the connection. With aRFS the NIC does this
itself, by its ntuple filters (Linux, Documentation/networking/scaling.rst).
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reducer.system_files import read_text
from reducer.units import format_count
from reducer_tools.doctor.findings import HERE, Finding, warning

SYS, PROC = Path("/sys"), Path("/proc")
# Slower NICs keep one core busy at most.
_LEAST_RATE = 10e9
# Bits per second for which docs/sizing.md wants a lane, and deploy/README.md a receive queue.
_RATE_OF_CORE = 8e9
_FLOW_ENTRIES = 32_768  # the kernel's recommendation for a busy server
_SIOCETHTOOL = 0x8946  # linux/sockios.h
_ETHTOOL_GFLAGS, _ETH_FLAG_NTUPLE = 0x25, 1 << 27  # linux/ethtool.h


@dataclass(frozen=True)
class Receiving:
    """The receive side of a NIC.

    ``interrupted`` has the cores that take the NIC's interrupts; it is empty if unknown.
    ``rps_cores`` has the cores to which RPS hands packets. ``rfs`` and ``ntuple`` say whether RFS
    and the NIC's ntuple filters are on.
    """

    queues: int
    interrupted: frozenset[int]
    rps_cores: frozenset[int]
    rfs: bool
    ntuple: bool

    @property
    def cores(self) -> int:
        """On how many cores, at most, the kernel takes packets from the NIC."""
        return min(self.queues, len(self.interrupted) or self.queues)

    def __str__(self) -> str:
        where = f", interrupts on {format_count(len(self.interrupted), 'core')}"
        rps = f"on {format_count(len(self.rps_cores), 'core')}" if self.rps_cores else "off"
        rfs = "off" if not self.rfs else "on, in the NIC" if self.ntuple else "on"
        return (
            format_count(self.queues, "receive queue")
            + (where if self.interrupted else "")
            + f", RPS {rps}, RFS {rfs}"
        )


def read(interface: str, sys: Path = SYS, proc: Path = PROC) -> Receiving | None:
    """The receive side of an interface; None for loopback and other interfaces without a device."""
    folder = sys / "class/net" / interface
    queues = sorted(folder.glob("queues/rx-*"))
    if not (folder / "device").exists() or not queues:
        return None
    masks = [read_mask(read_text(queue / "rps_cpus")) for queue in queues]
    flows = sum(_number(queue / "rps_flow_cnt") for queue in queues)
    entries = _number(proc / "sys/net/core/rps_sock_flow_entries")
    return Receiving(
        len(queues),
        frozenset().union(*(_cores_of(irq, proc) for irq in _interrupts(folder / "device"))),
        frozenset().union(*masks),
        bool(flows and entries),
        _has_ntuple(interface),
    )


def advise(
    interface: str, rate: float | None, found: Receiving, connections: int, cores: Iterable[int]
) -> Finding | None:
    """A warning if too few cores receive the packets of a fast NIC.

    Args:
        interface: the name of the NIC.
        rate: of the NIC in bits per second; None if unknown.
        found: the receive side of the NIC.
        connections: the number of connections, which the NIC spreads over its queues.
        cores: the numbers of the cores that this host may use.
    """
    usable = sorted(cores)
    if rate is None or rate < _LEAST_RATE or found.rps_cores:
        return None
    wanted = min(connections, len(usable), math.ceil(rate / _RATE_OF_CORE))
    if found.cores >= wanted:
        return None
    text = (
        f"{format_count(found.cores, 'core')} at most can receive the packets of {interface}, at "
        f"{rate / 1e9:g} Gbit/s ({found}); expected {wanted}: one for each "
        f"{_RATE_OF_CORE / 1e9:g} Gbit/s, and no more than connections or cores. "
        f"{_remedy(interface, found, wanted)}. Or let the kernel hand packets to other cores, as "
        f"root:\n{_commands(interface, found, usable)}"
    )
    return warning("receive-cores", HERE, text)


def read_mask(text: str) -> frozenset[int]:
    """The cores of a mask such as ``00000000,0000000f``; empty for an empty text."""
    mask = int(text.replace(",", "") or "0", 16)
    return frozenset(core for core in range(mask.bit_length()) if mask >> core & 1)


def format_mask(cores: Iterable[int]) -> str:
    """The mask of these cores as the kernel reads it: groups of 32 bits.

    >>> format_mask([0, 1, 2, 3]), format_mask([0, 32])
    ('f', '1,00000001')
    """
    digits = f"{sum(1 << core for core in cores):x}"
    first = len(digits) % 8
    groups = [digits[:first], *(digits[at : at + 8] for at in range(first, len(digits), 8))]
    return ",".join(filter(None, groups))


def read_list(text: str) -> frozenset[int]:
    """The cores of a list such as ``0-3,8``; empty for an empty text."""
    ends = [part.partition("-") for part in text.split(",") if part]
    return frozenset(
        core for low, _, high in ends for core in range(int(low), int(high or low) + 1)
    )


def _remedy(interface: str, found: Receiving, wanted: int) -> str:
    if found.queues >= wanted:
        return "Spread its interrupts over cores (irqbalance, or /proc/irq/*/smp_affinity_list)"
    return f"Give it more queues, if it has them (ethtool -L {interface} combined {wanted})"


def _commands(interface: str, found: Receiving, cores: Iterable[int]) -> str:
    return (
        f"sysctl -w net.core.rps_sock_flow_entries={_FLOW_ENTRIES}\n"
        f"for q in /sys/class/net/{interface}/queues/rx-*; do "
        f"echo {format_mask(cores)} > $q/rps_cpus; "
        f"echo {_FLOW_ENTRIES // found.queues} > $q/rps_flow_cnt; done"
    )


def _interrupts(device: Path) -> list[str]:
    """The numbers of the device's interrupts. Those of a virtio NIC belong to its parent."""
    for folder in (device / "msi_irqs", device / ".." / "msi_irqs"):
        if folder.is_dir():
            return [entry.name for entry in folder.iterdir()]
    return []


def _cores_of(irq: str, proc: Path) -> frozenset[int]:
    folder = proc / "irq" / irq
    return read_list(
        read_text(folder / "effective_affinity_list") or read_text(folder / "smp_affinity_list")
    )


def _has_ntuple(interface: str) -> bool:
    value = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_GFLAGS, 0), 8)
    request = struct.pack("16sP", interface.encode()[:15], ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)
        except OSError:  # no such interface, or a driver without flags
            return False
    return bool(struct.unpack("II", value.raw)[1] & _ETH_FLAG_NTUPLE)


def _number(path: Path) -> int:
    return int(read_text(path) or 0)
