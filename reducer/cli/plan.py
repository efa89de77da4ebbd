"""``reducer plan``: how many reducers a cluster needs, and what they gain over a ring."""

from __future__ import annotations

import json

import click

from reducer.cli.sizes import size_option
from reducer.planner import report


@click.command("plan")
@click.option("--workers", type=int, required=True, help="Workers: hosts with a NIC of their own.")
@click.option("--worker-gbps", type=float, required=True, help="Gbit/s of a worker's NIC.")
@click.option("--reducer-gbps", type=float, required=True, help="Gbit/s of a reducer's NIC.")
@click.option("--reducers", type=int, help="Plan for so many. [default: as many as are needed]")
@click.option(
    "--gradient-bytes",
    metavar="SIZE",
    callback=size_option,
    default="400M",
    show_default=True,
    help="Bytes that a worker reduces in a step; K, M and G are binary.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    workers: int,
    worker_gbps: float,
    reducer_gbps: float,
    reducers: int | None,
    gradient_bytes: int,
    as_json: bool,
) -> None:
    """Compute the reducers needed, and all-reduce times beside a ring.

    A model of the NICs with headers and nothing else: the best that each side can reach.
    """
    cluster = report.Cluster(workers, worker_gbps, reducer_gbps, gradient_bytes)
    try:
        plan = report.make_plan(cluster, reducers)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(json.dumps(report.as_json(plan)) if as_json else report.as_text(plan))
