"""How commands name the reducers: ``--addresses``, by default the reducers of the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from reducer.cluster.addresses import DEFAULT_PORT, split_list
from reducer.server import serve_options
from reducer.status.ask import parse_address
from reducer.status.here import find_here

F = TypeVar("F", bound=Callable[..., object])


def seconds_option(
    name: str, default: float, help: str = "Longest wait for the answer of a reducer."
) -> Callable[..., Any]:
    """An option for a time of 0.1 to 60 seconds."""
    kind = click.FloatRange(0.1, 60)
    return click.option(
        name, type=kind, default=default, show_default=True, metavar="SECONDS", help=help
    )


def addresses_option(function: F) -> F:
    """The option by which every command names the reducers."""
    option = click.option(
        "--addresses",
        metavar="HOST:PORT,...",
        help="Addresses of the reducers, as the workers have them. [default: those that `reducer "
        "env` prints]",
    )
    return option(function)


def status_addresses(given: str | None) -> list[str]:
    """The reducers to ask, without duplicates.

    By default these are the reducers that the environment names, else all on this machine, whose
    metrics ports are known. A bad address ends the command with exit status 2.
    """
    try:
        if given is None:
            found = serve_options.find_cluster().addresses
            asked = list(found.value) if found else find_here()
        else:
            asked = list(dict.fromkeys(split_list(given)))
        for address in asked:
            parse_address(address)
    except ValueError as error:
        raise click.UsageError(f"--addresses: {error}") from None
    return asked or [f"127.0.0.1:{DEFAULT_PORT}"]
