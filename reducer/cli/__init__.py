"""The command line: one file for each command, imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from reducer import __version__

_COMMANDS = {
    "serve": "reducer.cli.serve",
    "keygen": "reducer.cli.keygen",
    "config": "reducer.cli.config",
    "env": "reducer.cli.env",
    "status": "reducer.cli.status",
    "top": "reducer.cli.top",
    "doctor": "reducer.cli.doctor",
    "timeline": "reducer.cli.timeline",
    "bench": "reducer.cli.bench",
    "plan": "reducer.cli.plan",
    "convert": "reducer.cli.convert",
    "k8s": "reducer.cli.k8s",
    "demo": "reducer.cli.demo",
    "nccl": "reducer.cli.nccl",
}


class _LazyGroup(click.Group):
    """Finds a command's module by name, so that ``reducer --version`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Where the client has no engine, its own words say enough."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            if error.name != "reducer_client.engine":
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_LazyGroup)
@click.version_option(__version__, prog_name="reducer")
def main() -> None:
    """Sum the gradients of distributed training on CPU-only reducers."""
