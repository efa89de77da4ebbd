"""``reducer doctor``: checks whether this host can use the reducers, and says why not."""

from __future__ import annotations

import json
import secrets
import sys

import click

from reducer.status.ask import DEFAULT_PORT


@click.command("doctor")
@click.option(
    "--addresses",
    metavar="HOST:PORT,...",
    help="Addresses of the reducers. [default: as `reducer env`]",
)
@click.option("--key-file", metavar="FILE", help="Key file of mode psk. [env: REDUCER_KEY_FILE]")
@click.option(
    "--job", help="Job to join, where a key or certificate is for one job. [default: a new job]"
)
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=5.0, show_default=True)
@click.option(
    "--bandwidth",
    type=click.FloatRange(0, 10),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Seconds of traffic with each reducer, 10 s in all; 0: no traffic.",
)
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True,
    help="Metrics port of the reducers, for release and clock; it need not answer.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    addresses: str | None,
    key_file: str | None,
    job: str | None,
    timeout: float,
    bandwidth: float,
    metrics_port: int,
    as_json: bool,
) -> None:
    """Look from this host at every reducer as a worker would, and say what is wrong.

    The command joins each reducer as the only worker of a new job and leaves again. It uses the key
    or the certificates that a worker would use (REDUCER_KEY_FILE, REDUCER_TLS_CERT, _KEY and _CA).
    RATE is the rate in each direction, for one worker. The command does not touch running jobs, but
    its traffic shares their network. The exit status is 1 if a job could not start here.
    """
    from reducer_client import config
    from reducer_tools.doctor import report
    from reducer_tools.doctor.diagnosis import diagnose
    from reducer_tools.doctor.reach import Login

    name = job or f"doctor-{secrets.token_hex(4)}"
    try:
        settings = config.resolve(addresses, job=name, rank=0, world_size=1)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        key = config.resolve_key(name, None, key_file)
        mode = "tls" if config.resolve_tls() else "psk" if key else "open"
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    login = Login(name, mode, key_file, timeout)
    found = diagnose(settings.addresses, login, metrics_port, bandwidth)
    click.echo(json.dumps(report.as_json(found)) if as_json else report.as_text(found))
    sys.exit(0 if found.healthy else 1)
