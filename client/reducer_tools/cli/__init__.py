"""The program `reducer`: the daemon's commands and the tools' commands, one file each."""

from __future__ import annotations

from typing import Any, Final

import click

from reducer.cli import COMMANDS, LazyGroup, version_option

_COMMANDS: Final = {
    **COMMANDS,
    "top": "reducer_tools.cli.top",
    "doctor": "reducer_tools.cli.doctor",
    "timeline": "reducer_tools.cli.timeline",
    "bench": "reducer_tools.cli.bench",
    "plan": "reducer_tools.cli.plan",
    "convert": "reducer_tools.cli.convert",
    "table": "reducer_tools.cli.table",
    "k8s": "reducer_tools.cli.k8s",
    "demo": "reducer_tools.cli.demo",
    "nccl": "reducer_tools.cli.nccl",
}


class _Group(LazyGroup):
    modules = _COMMANDS

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; if the client's engine is missing, print the error without a traceback."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            if error.name != "reducer_client.engine":
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group)
@version_option
def main() -> None:
    """Sum the gradients of distributed training on CPU-only reducers."""
