"""Options and arguments of the commands that ask metrics ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from reducer.status.ask import DEFAULT_PORT, parse_address
from reducer.status.here import find_here


def seconds_option(
    name: str, default: float, help: str = "Longest wait for the answer of a reducer."
) -> Callable[..., Any]:
    """An option for a time of 0.1 to 60 seconds."""
    kind = click.FloatRange(0.1, 60)
    return click.option(
        name, type=kind, default=default, show_default=True, metavar="SECONDS", help=help
    )


def status_addresses(given: Sequence[str]) -> list[str]:
    """Return the addresses to ask, without duplicates: by default all reducers on this machine.

    A bad address ends the command with exit status 2.
    """
    asked = list(dict.fromkeys(given)) or find_here() or [f"127.0.0.1:{DEFAULT_PORT}"]
    refuse_bad(asked)
    return asked


def refuse_bad(addresses: Sequence[str]) -> None:
    """End the command with exit status 2 if an address is bad."""
    try:
        for address in addresses:
            parse_address(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
