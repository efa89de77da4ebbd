"""``reducer config``: the options in force, and the source of each."""

from __future__ import annotations

from typing import Any

import click

from reducer.cli.click_options import config_options, effective
from reducer.columns import aligned
from reducer.server import serve_options


@click.command("config")
@click.option("--show-docs", is_flag=True, help="Print an annotated TOML file with the defaults.")
@config_options
def command(show_docs: bool, file: str | None, **given: Any) -> None:
    """Print the options in effect, and the source of each value.

    Takes the options of `reducer serve`.
    """
    if show_docs:
        click.echo(serve_options.document(), nl=False)
        return
    found = effective(file, given)
    table = serve_options.options()
    rows = [
        (name, table[name].format(getattr(found.config, name)), source)
        for name, source in found.sources.items()
    ]
    click.echo("\n".join(aligned(rows, left=range(3))))
