"""Settings that this machine's kernel must accept: congestion control, source of connections."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from reducer_client.config.values import Kind


def _check_congestion(value: Any) -> str:
    if value:
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, value.encode())
            except OSError as error:
                raise ValueError(
                    f"{error.strerror}; this kernel has "
                    f"{_kernel_setting('tcp_available_congestion_control')}; without privileges it "
                    f"allows {_kernel_setting('tcp_allowed_congestion_control')}"
                ) from None
    return str(value)


def _kernel_setting(name: str) -> str:
    return Path("/proc/sys/net/ipv4", name).read_text(encoding="ascii").strip()


def _check_source(value: Any) -> str:
    """An address of this machine, or the name of an interface.

    A name stays a name, because the address of an interface may change.
    """
    text = str(value).strip().removeprefix("[").removesuffix("]")
    interfaces = [name for _, name in socket.if_nameindex()]
    if not text or text in interfaces:
        return text
    expected = (
        f"expected an address of this machine, or one of its interfaces {', '.join(interfaces)}"
    )
    try:
        (family, kind, *_, address), *_ = socket.getaddrinfo(
            text, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except OSError:
        raise ValueError(expected) from None
    with socket.socket(family, kind) as probe:
        try:
            probe.bind(address)
        except OSError as error:
            raise ValueError(f"{expected}, got an error: {error.strerror}") from None
    return text


CONGESTION: Kind[str] = Kind(_check_congestion)
SOURCE: Kind[str] = Kind(_check_source)
