"""Addresses as users write them: host, host:port or [ipv6]:port; lists are separated by commas."""

from __future__ import annotations

from collections.abc import Sequence

from reducer.cluster.variables import ClusterError

DEFAULT_PORT = 2222


def normalize_address(text: str) -> str:
    """An address as ``host:port``, with port 2222 by default and IPv6 in brackets.

    >>> normalize_address("reducer-0"), normalize_address("[::1]:4000")
    ('reducer-0:2222', '[::1]:4000')
    """
    host, port = split_address(text)
    return f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """The host, in brackets if it is an IPv6 address, and the port. Raises ClusterError."""
    text = text.strip()
    host, colon, port = _split(text)
    if not colon:
        port = str(DEFAULT_PORT)
    name = host[1:-1] if host.startswith("[") else host
    if not name or any(c.isspace() or c in "/@,?#" for c in name):
        raise ClusterError(f"address {text!r}: expected host, host:port or [ipv6]:port")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ClusterError(f"address {text!r}: port {port!r} is not a number from 1 to 65535")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The address of a host without brackets.

    >>> join_address("10.0.0.1", 2222), join_address("::1", 4000)
    ('10.0.0.1:2222', '[::1]:4000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_list(text: str) -> list[str]:
    """The parts between commas that are not blank."""
    return [part.strip() for part in text.split(",") if part.strip()]


def refuse_duplicates(addresses: Sequence[str], where: str) -> None:
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    if twice:
        raise ClusterError(f"{where}: {', '.join(twice)} is listed twice; name each reducer once")


def _split(text: str) -> tuple[str, str, str]:
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ClusterError(f"address {text!r}: expected [ipv6]:port")
        return f"{host}]", rest[:1], rest[1:]
    if text.count(":") > 1:
        raise ClusterError(f"address {text!r}: an IPv6 address goes in brackets, [{text}]:2222")
    return text.partition(":")
