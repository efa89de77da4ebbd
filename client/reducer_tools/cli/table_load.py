"""``reducer table load``: makes the tables of a checkpoint on the reducers."""

from __future__ import annotations

import click

from reducer.units import format_count
from reducer_tools.cli.table_options import connected, reaching_tables


@click.command("load")
@click.argument("directory", type=click.Path())
@reaching_tables
@click.option("--step", type=click.IntRange(0), help="Which checkpoint. [default: the newest]")
def command(
    directory: str,
    addresses: str | None,
    job: str | None,
    run_id: str | None,
    key_file: str | None,
    timeout: float,
    step: int | None,
) -> None:
    """Make the tables of a checkpoint in DIRECTORY on the reducers, before the workers start.

    The workers then attach to the tables. The tables may have been saved from other reducers, and
    from another number of reducers.
    """
    with connected(addresses, job, run_id, key_file, timeout) as tables:
        found = tables.load(directory, step)
    for name, table in found.items():
        click.echo(f"table {name!r}: version {table.version:,}")
    click.echo(f"loaded {format_count(len(found), 'table')} for job {tables.job!r}")
