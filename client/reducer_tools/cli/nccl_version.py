"""The option ``--version`` of the NCCL commands."""

from __future__ import annotations

from typing import Any

import click

from reducer_tools.nccl.versions import Version, parse_version


def _parse(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Version | None:
    if value is None:
        return None
    try:
        return parse_version(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def version_option(function: Any) -> Any:
    """Add the option ``--version``, whose value is a `Version` or None."""
    return click.option(
        "--version",
        metavar="X.Y.Z",
        callback=_parse,
        help="Version of NCCL. [default: of the libnccl that this Python would load]",
    )(function)
