"""What a rank knows about its own machine: its identity, its address and its NIC."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from reducer import nic


def machine_id() -> bytes:
    """16 bytes that differ between ranks that cannot talk over loopback.

    Containers with a network of their own are machines of their own.
    """
    booted = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    network = os.stat("/proc/self/ns/net").st_ino
    return hashlib.sha256(booted + str(network).encode()).digest()[:16]


def own_address(interface: str, toward: str) -> str:
    """The address of the interface; without one, the address of the route to a host.

    Raises ValueError if the interface has no address. The result may be a loopback address, and ""
    if there is no route.
    """
    if not interface:
        return nic.address_toward(toward)
    found = nic.address_of(interface)
    if not found:
        raise ValueError(f"REDUCER_SOCKET_IFNAME={interface!r}: this interface has no address")
    return found
