"""The table of machine types: the built-in table, and the option for the user's own file."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import BinaryIO

import click

from reducer_tools.cli.documents import name_file, read_toml
from reducer_tools.planner.fields import SpecError
from reducer_tools.planner.machines import Machines

machines_option = click.option(
    "--machines",
    type=click.File("rb"),
    help="TOML file of your own machine types, which override the built-in table; `reducer plan "
    "--show-machines` prints that table as an example.",
)


def builtin_machines() -> str:
    """The built-in table as TOML text."""
    return (resources.files("reducer_tools.planner") / "machines.toml").read_text(encoding="utf-8")


def load_machines(file: BinaryIO | None) -> Machines:
    """The built-in table of machines. If ``file`` is given, its rows come first.

    Ends with exit status 2 if the file is invalid.
    """
    tables: list[object] = [tomllib.loads(builtin_machines())]
    if file is None:
        return Machines(*tables)
    try:
        return Machines(*tables, read_toml(file))
    except SpecError as error:
        raise click.UsageError(f"{name_file(file)}: {error}") from None
