"""How commands name the reducers: ``--addresses``, by default the reducers of the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from reducer.cluster.addresses import DEFAULT_PORT, normalize_address, split_list
from reducer.server import serve_options
from reducer.status.here import find_here

_ON_LOOPBACK = f"127.0.0.1:{DEFAULT_PORT}"
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
        callback=_checked,
    )
    return option(function)


def _checked(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        for address in split_list(text or ""):
            normalize_address(address)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def status_addresses(given: str | None) -> list[str]:
    """The reducers to ask, without duplicates.

    By default these are the reducers that the environment names, else all on this machine, whose
    metrics ports are known. A bad variable ends the command with exit status 2.
    """
    if given is not None:
        return list(dict.fromkeys(split_list(given))) or [_ON_LOOPBACK]
    try:
        found = serve_options.find_cluster().addresses
    except serve_options.ConfigError as error:
        raise click.UsageError(str(error)) from None
    return (list(found.value) if found else find_here()) or [_ON_LOOPBACK]
