"""``reducer demo``: trains a small model over local reducers and over gloo, and compares them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from reducer_tools.cli.extras import need

_NEEDED = {"matplotlib": "matplotlib", "rich": "rich", "sklearn": "scikit-learn", "torch": "torch"}


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder for loss.png.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of workers."
)
@click.option(
    "--reducers",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="Number of reducers.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 1000),
    default=15,
    show_default=True,
    help="Number of epochs of each training.",
)
def command(out: Path, workers: int, reducers: int, epochs: int) -> None:
    """Train a model with DDP over local reducers, then over gloo.

    The model learns handwritten digits. The command compares the two training runs, and draws their
    losses in loss.png.
    """
    need("the demo", "demo", **_NEEDED)
    from reducer_tools.demo import run as demo

    try:
        code = demo.run(out, workers=workers, reducers=reducers, epochs=epochs)
    except demo.DemoError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)
