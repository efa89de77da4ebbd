"""The addresses that `reducer status` and `reducer top` take."""

from __future__ import annotations

from collections.abc import Sequence

import click

from reducer.status.ask import DEFAULT_PORT, parse_address


def status_addresses(given: Sequence[str]) -> list[str]:
    """Metrics ports to ask, each once: this machine's by default; exit status 2 for a bad one."""
    asked = list(dict.fromkeys(given)) or [f"127.0.0.1:{DEFAULT_PORT}"]
    try:
        for address in asked:
            parse_address(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return asked
