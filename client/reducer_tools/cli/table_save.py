"""``reducer table save``: saves the tables of a job as a checkpoint."""

from __future__ import annotations

import click

from reducer.units import format_count
from reducer_tools.cli.table_options import connected, reaching_tables


@click.command("save")
@click.argument("directory", type=click.Path())
@reaching_tables
@click.option(
    "--step", type=click.IntRange(0), help="The checkpoint's number. [default: the version]"
)
@click.option("--keep", type=click.IntRange(1), help="Checkpoints to keep. [default: all]")
def command(
    directory: str,
    addresses: str | None,
    job: str | None,
    run_id: str | None,
    key_file: str | None,
    timeout: float,
    step: int | None,
    keep: int | None,
) -> None:
    """Save all tables of a job in DIRECTORY, with the state of their optimizers.

    The workers go on training. A checkpoint does not depend on the number of reducers.
    """
    with connected(addresses, job, run_id, key_file, timeout) as tables:
        names = [info.name for info in tables.tables()]
        for name in names:
            tables.attach(name)
        path = tables.save(directory, step, keep)
    click.echo(f"saved {format_count(len(names), 'table')} of job {tables.job!r} in {path}")
