"""The daemon's commands, one file each, imported only when a command is called.

``reducer_tools.cli`` adds the commands of the tools; the program `reducer` has both.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

import click

from reducer import __version__

COMMANDS: Final = {
    "serve": "reducer.cli.serve",
    "keygen": "reducer.cli.keygen",
    "config": "reducer.cli.config",
    "env": "reducer.cli.env",
    "status": "reducer.cli.status",
}


class LazyGroup(click.Group):
    """Imports the module of a command when the command is called, so `reducer --version` is quick.

    ``modules`` maps the name of each command to a module that has it as ``command``; help lists
    the commands in this order.
    """

    modules: Mapping[str, str]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        command = importlib.import_module(self.modules[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


class _DaemonGroup(LazyGroup):
    modules = COMMANDS


@click.group(cls=_DaemonGroup)
@click.version_option(__version__, prog_name="reducer")
def main() -> None:
    """Sum the gradients of distributed training on CPU-only reducers."""
