"""Addresses of metrics ports on the command line."""

from __future__ import annotations

from collections.abc import Sequence

import click

from reducer.status.ask import DEFAULT_PORT, parse_address


def status_addresses(given: Sequence[str]) -> list[str]:
    """Metrics ports to ask, each once: this machine's by default; exit status 2 for a bad one."""
    asked = list(dict.fromkeys(given)) or [f"127.0.0.1:{DEFAULT_PORT}"]
    refuse_bad(asked)
    return asked


def refuse_bad(addresses: Sequence[str]) -> None:
    """Exit status 2 for one that is no address."""
    try:
        for address in addresses:
            parse_address(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
