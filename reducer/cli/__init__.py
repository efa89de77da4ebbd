"""The daemon's commands, one file each, imported only when a command is called.

``reducer_tools.cli`` adds the commands of the tools; the program `reducer` has both.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Final

import click

from reducer import __version__
from reducer.version import PROTOCOL_VERSION

COMMANDS: Final = {
    "serve": "reducer.cli.serve",
    "keygen": "reducer.cli.keygen",
    "config": "reducer.cli.config",
    "env": "reducer.cli.env",
    "status": "reducer.cli.status",
}

version_option = click.version_option(
    __version__,
    prog_name="reducer",
    message=f"%(prog)s %(version)s, wire protocol {PROTOCOL_VERSION}",
)

_HYPHEN: Final = "\u2011"  # one at which no line is broken


class _Formatter(click.HelpFormatter):
    """Breaks no line of help inside the name of an option, which a reader may want to copy."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        whole = [(name, text.replace("-", _HYPHEN)) for name, text in rows]
        super().write_dl(whole, col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


click.Context.formatter_class = _Formatter


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
@version_option
def main() -> None:
    """Sum the gradients of distributed training on CPU-only reducers."""
