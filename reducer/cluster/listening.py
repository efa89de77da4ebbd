"""Where a replica that is a reducer listens: workers connect to the address listed for it."""

from __future__ import annotations

import ipaddress

from reducer.cluster.addresses import split_address
from reducer.cluster.discovery import find_task
from reducer.cluster.variables import Environment, Found


def find_listening(env: Environment) -> Found[tuple[str, int]] | None:
    """The host and port to listen on; None if this replica is no reducer."""
    task = find_task(env)
    if task is None or task.value.role != "reducer" or task.value.address is None:
        return None
    host, port = split_address(task.value.address)
    return Found((_listen_for(host.strip("[]")), port), task.source)


def _listen_for(host: str) -> str:
    """All interfaces, since a container behind a bridge does not have the listed address.

    A loopback address stays as it is.
    """
    if host == "localhost":
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "0.0.0.0"
    if address.is_loopback:
        return host
    return "::" if address.version == 6 else "0.0.0.0"
