"""``reducer table ls``: lists the tables of a job."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

import click

from reducer.columns import aligned
from reducer.status.amounts import amount
from reducer_tools.cli.table_options import connected, reaching_tables

if TYPE_CHECKING:
    from reducer_client.tables import TableInfo

_HEAD = ("TABLE", "  MODE", "  OPTIMIZER", "TENSORS", "PARAMETERS", "MEMORY", "VERSION", "LR", "")


@click.command("ls")
@reaching_tables
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    addresses: str | None,
    job: str | None,
    run_id: str | None,
    key_file: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Print the tables of a job: their modes, optimizers, sizes and versions.

    MEMORY is the sum over all reducers, without backups.
    """
    with connected(addresses, job, run_id, key_file, timeout) as tables:
        found = tables.tables()
        name = tables.job
    if as_json:
        click.echo(json.dumps([_plain(info) for info in found]))
    elif not found:
        click.echo(f"job {name!r} has no tables")
    else:
        click.echo("\n".join(aligned([_HEAD, *map(_cells, found)], left=(1, 2, 8))))


def _cells(info: TableInfo) -> tuple[str, ...]:
    return (
        info.name,
        f"  {info.mode}",
        f"  {info.optimizer.NAME}",
        f"{len(info.shapes):,}",
        f"{sum(map(math.prod, info.shapes.values())):,}",
        amount(info.bytes),
        f"{info.version:,}",
        "-" if info.lr is None else f"{info.lr:g}",
        "" if info.ready else "  waits for its first values",
    )


def _plain(info: TableInfo) -> dict[str, object]:
    fields = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    return {**fields, "optimizer": info.optimizer.NAME, "mode": str(info.mode)}
