"""``reducer doctor``: checks whether this host can use the reducers, and says why not."""

from __future__ import annotations

import json
import secrets
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from reducer.cli.addresses import addresses_option, seconds_option

if TYPE_CHECKING:
    from reducer_tools.doctor.diagnosis import Diagnosis


@click.command("doctor")
@addresses_option
@click.option(
    "--key-file",
    metavar="FILE",
    help="Key file of the reducers, or of the job in --job. [env: REDUCER_KEY_FILE]",
)
@click.option(
    "--job",
    help="Name of the job to join. Give it if your key or certificate admits only that job. "
    "[default: a new name]",
)
@seconds_option("--timeout", 5.0, "Longest wait for each connection, answer and round.")
@click.option(
    "--bandwidth-seconds",
    "bandwidth",
    type=click.FloatRange(0, 10),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Time to measure the bandwidth of each reducer, at most 10 s for all; 0: do not measure.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    addresses: str | None,
    key_file: str | None,
    job: str | None,
    timeout: float,
    bandwidth: float,
    as_json: bool,
) -> None:
    """Check whether a job could use the reducers from this host.

    Without reducers, the command checks whether this host could host one for its workers.

    The command says what is wrong, and what to do. It connects to every reducer as a worker would:
    it joins as the only worker of a new run, and leaves again. It uses the key or the certificates
    that a worker would use (REDUCER_KEY_FILE, or REDUCER_TLS_CERT, REDUCER_TLS_KEY and
    REDUCER_TLS_CA). RATE is the bandwidth in each direction that one worker gets. The command does
    not disturb running jobs, but its traffic takes a part of their network. The exit status is 1 if
    a job could not start here.
    """
    from reducer_client import config
    from reducer_client.config.hosting import resolve_hosting
    from reducer_tools.doctor.diagnosis import diagnose
    from reducer_tools.doctor.hosting import diagnose_hosting
    from reducer_tools.doctor.reach import Login

    name = job or f"doctor-{secrets.token_hex(4)}"
    try:
        hosting = resolve_hosting()
        if not config.find_dedicated(addresses) and hosting.wanted:
            _show(diagnose_hosting(hosting, timeout), as_json)
        settings = config.resolve(config.Given(addresses=addresses, job=name, rank=0, world_size=1))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        key = config.resolve_key(name, None, key_file)
        mode = "tls" if config.resolve_tls() else "psk" if key else "open"
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    login = Login(name, mode, key_file, timeout)
    _show(diagnose(settings.addresses, login, bandwidth), as_json)


def _show(found: Diagnosis, as_json: bool) -> NoReturn:
    from reducer_tools.doctor import report

    click.echo(json.dumps(report.as_json(found)) if as_json else report.as_text(found))
    sys.exit(0 if found.healthy else 1)
