"""``reducer nccl``: commands for the NCCL plugin on this machine."""

from __future__ import annotations

import click

from reducer_tools.cli import nccl_check, nccl_env


@click.group("nccl")
def command() -> None:
    """Set NCCL up for the reducers, and check that NCCL uses them."""


command.add_command(nccl_env.command)
command.add_command(nccl_check.command)
