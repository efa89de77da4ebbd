"""The options of the commands that reach the tables of a job."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from reducer.cli.addresses import addresses_option, seconds_option

if TYPE_CHECKING:
    from reducer_client.tables import ParameterServer

F = TypeVar("F", bound=Callable[..., object])


def reaching_tables(function: F) -> F:
    """Add the options that `connected` needs."""
    options = (
        addresses_option,
        click.option("--job", help="Name of the job. [env: REDUCER_JOB]"),
        click.option("--run-id", help="Id of the run. [env: REDUCER_RUN_ID]"),
        click.option(
            "--key-file",
            metavar="FILE",
            help="Key file of the reducers, or of the job. [env: REDUCER_KEY_FILE]",
        ),
        seconds_option("--timeout", 60.0, "Longest wait for the reducers."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@contextmanager
def connected(
    addresses: str | None,
    job: str | None,
    run_id: str | None,
    key_file: str | None,
    timeout: float,
) -> Generator[ParameterServer]:
    """The tables of the job, for a process that takes no part in them. Errors are for people."""
    from reducer_client import ReducerError, parameter_server

    try:
        with parameter_server(
            addresses,
            job=job,
            run_id=run_id,
            reader=True,
            connect_timeout=timeout,
            timeout=timeout,
            key_file=key_file,
        ) as tables:
            yield tables
    except (ReducerError, ValueError) as error:
        raise click.ClickException(str(error)) from None
