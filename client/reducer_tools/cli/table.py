"""``reducer table``: commands for the tables of a parameter server."""

from __future__ import annotations

from typing import Final

import click

from reducer.cli import LazyGroup

_COMMANDS: Final = {
    name: f"reducer_tools.cli.table_{name}" for name in ("ls", "save", "load", "inspect")
}


class _Group(LazyGroup):
    modules = _COMMANDS


@click.group("table", cls=_Group)
def command() -> None:
    """Look at the tables of a parameter server and at their checkpoints."""
