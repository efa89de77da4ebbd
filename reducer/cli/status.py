"""``reducer status``: shows what running reducers do and which ranks are late."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from reducer.cli.addresses import addresses_option, seconds_option, status_addresses
from reducer.status.ask import ask_all
from reducer.status.summary import summarize
from reducer.status.table import as_text


@click.command("status")
@addresses_option
@seconds_option("--timeout", 5.0)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(addresses: str | None, timeout: float, as_json: bool) -> None:
    """Print the jobs of running reducers, their late ranks, and their tables.

    Without --addresses, and if the environment names no reducers, the command asks all reducers on
    this machine, hosted ones included. A reducer answers from another machine only if it serves
    with --metrics-host. WAITED FOR is the time, since the run began, during
    which at least half of the ranks were waiting for this rank. SHARE is this time as a part of the
    run's time. Tables of a job have rows of their own: UPDATES counts updates of the whole table,
    STALENESS the updates between a pull and its update. The exit status is 1 if a reducer does not
    answer.
    """
    asked = status_addresses(addresses)
    answers, errors = ask_all(asked, timeout)
    summary = summarize(answers)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(summary), "errors": errors}))
    elif answers:
        click.echo(as_text(summary, errors))
    for text in errors.values():
        click.echo(f"Error: {text}", err=True)
    sys.exit(1 if errors else 0)
