"""Derives click options from the table in `reducer.server.serve_options`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from reducer.server import serve_options
from reducer.units import parse_int

_METAVARS = {
    "host": "HOST",
    "port": "PORT",
    "file": "FILE",
    "cert": "FILE",
    "key": "FILE",
    "ca": "FILE",
    "timeline": "FOLDER",
    "registry": "FILE",
}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--config`` and every option of the table; values arrive as unparsed text."""
    for name, option in reversed(serve_options.options().items()):
        function = _declare(name, option)(function)
    path = click.option(
        "--config",
        "file",
        metavar="FILE",
        help=f"TOML file with options. [env: {serve_options.FILE_ENV}]",
    )
    return path(function)


def _declare(name: str, option: serve_options.Option) -> Decorator:
    flag = serve_options.flag_name(name)
    variable = serve_options.env_name(name)
    text = f"{option.help} [env: {variable}; default: {option.default or 'none'}]"
    if option.flag:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    return click.option(flag, name, default=None, metavar=_metavar(name, option), help=text)


def _metavar(name: str, option: serve_options.Option) -> str:
    if option.choices:
        return "|".join(option.choices)
    if option.unit:
        return option.unit.upper()
    return _METAVARS.get(
        name.rsplit("_", 1)[-1], "NUMBER" if option.parse is parse_int else "VALUE"
    )


def effective(file: str | None, given: dict[str, Any]) -> serve_options.Effective:
    """Merge the command line with the other sources; ends with exit status 2 on a bad value."""
    named = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None
    }
    try:
        return serve_options.load(named, file=file)
    except serve_options.ConfigError as error:
        raise click.UsageError(str(error)) from None
