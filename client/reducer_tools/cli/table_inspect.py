"""``reducer table inspect``: shows the checkpoints of a directory."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from reducer.columns import aligned
from reducer.status.amounts import amount, duration
from reducer.units import format_count

if TYPE_CHECKING:
    from reducer_client.tables.checkpoints import CheckpointRow

_HEAD = ("STEP", "  TABLES", "PARAMETERS", "SIZE", "AGE", "  STATE")


@click.command("inspect")
@click.argument("directory", type=click.Path())
@click.option("--verify", is_flag=True, help="Compare the SHA-256 of every file, not only sizes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, verify: bool, as_json: bool) -> None:
    """Print the checkpoints of tables in DIRECTORY, and which of them are damaged.

    PARAMETERS and SIZE are of all tables of a checkpoint; SIZE includes the optimizers' state. The
    checkpoint that a load takes by default is marked "latest". Without --verify only the sizes of
    the files are compared. The exit status is 1 if a checkpoint is damaged.
    """
    from reducer_client.tables.checkpoints import CheckpointError, inspect

    try:
        rows = inspect(directory, verify=verify)
    except CheckpointError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        click.echo("\n".join(_lines(directory, rows)))
    sys.exit(1 if any(row.damage for row in rows) else 0)


def _lines(directory: str, rows: Sequence[CheckpointRow]) -> Iterator[str]:
    if not rows:
        yield f"no checkpoint in {directory}"
        return
    yield from aligned([_HEAD, *map(_cells, rows)], left=(1, 5))
    for row in rows:
        if row.damage:
            yield f"step {row.step}: {row.damage}"


def _cells(row: CheckpointRow) -> tuple[str, ...]:
    if row.damage:
        cells = ("-", "-", "-", "-")
    else:
        names = ", ".join(row.tables)
        if len(names) > 40:
            names = format_count(len(row.tables), "table")
        cells = (names, f"{row.parameters:,}", amount(row.size), duration(row.age or 0.0))
    state = "damaged" if row.damage else "good"
    return (
        str(row.step),
        f"  {cells[0]}",
        *cells[1:],
        f"  {state}, latest" if row.latest else f"  {state}",
    )
