"""Addresses of metrics ports on the command line."""

from __future__ import annotations

from collections.abc import Sequence

import click

from reducer.status.ask import DEFAULT_PORT, parse_address


def status_addresses(given: Sequence[str]) -> list[str]:
    """The addresses to ask, without duplicates; by default this machine's metrics port.

    A bad address ends the command with exit status 2.
    """
    asked = list(dict.fromkeys(given)) or [f"127.0.0.1:{DEFAULT_PORT}"]
    refuse_bad(asked)
    return asked


def refuse_bad(addresses: Sequence[str]) -> None:
    """End the command with exit status 2 if an address is bad."""
    try:
        for address in addresses:
            parse_address(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
