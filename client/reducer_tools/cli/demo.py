"""``reducer demo``: trains a small model over reducers and over gloo, and compares them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from reducer_tools.cli.extras import need

_NEEDED = {"matplotlib": "matplotlib", "rich": "rich", "torch": "torch"}


def _rate(_: click.Context, __: click.Parameter, value: str) -> str:
    from reducer_tools.netlab import Nic

    try:
        Nic(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command(context_settings={"show_default": True})
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    help="Folder for demo.png.",
)
@click.option("--workers", type=click.IntRange(2, 64), default=4, help="Number of workers.")
@click.option("--reducers", type=click.IntRange(1, 64), default=4, help="Number of reducers.")
@click.option("--steps", type=click.IntRange(10, 10_000), default=15, help="Steps of each run.")
@click.option("--rate", callback=_rate, default="100mbit", help="Rate of each NIC, as tc takes it.")
@click.option("--loopback", is_flag=True, help="Use loopback only, not hosts with limited NICs.")
def command(out: Path, workers: int, reducers: int, steps: int, rate: str, loopback: bool) -> None:
    """Train a model with DDP over reducers and over gloo, side by side.

    Each worker and each reducer is on a host with a limited NIC, made of network namespaces on this
    machine. This needs ip and tc (iproute2), and root or user namespaces. Without them, all
    programs use loopback.

    The command prints the times of both runs, and draws them with the losses in demo.png.
    """
    need("the demo", "demo", **_NEEDED)
    from reducer_tools.netlab import isolate
    from reducer_tools.netlab.trial import find_obstacle

    obstacle = "--loopback was given" if loopback else find_obstacle()
    if not obstacle:
        isolate()  # before the imports below, which start threads
    from reducer_tools.demo import run as demo
    from reducer_tools.demo.case import Case

    try:
        code = demo.run(Case(workers, reducers, steps, rate, obstacle), out)
    except demo.DemoError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)
