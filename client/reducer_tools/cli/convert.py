"""``reducer convert``: turns a Cloud ML Engine config.yaml into a Vertex AI job with reducers."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import click

from reducer_tools.cli.documents import name_file, read_document, write_yaml
from reducer_tools.cli.machines import load_machines, machines_option
from reducer_tools.planner.convert import Target, convert
from reducer_tools.planner.fields import Section, SpecError
from reducer_tools.planner.machines import DEFAULT_REDUCER
from reducer_tools.planner.mlengine import read_training
from reducer_tools.planner.request import Host


def _read_variables(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    """A click callback that parses NAME=VALUE options. Raises BadParameter for other text."""
    pairs = [text.partition("=") for text in value]
    for name, sign, _ in pairs:
        if not sign or not name.replace("_", "a").isalnum():
            raise click.BadParameter(f"expected NAME=VALUE, got {name + sign!r}")
    return {name: text for name, _, text in pairs}


@click.command("convert")
@click.argument("config", type=click.File("rb"))
@click.option(
    "--reducer-image", required=True, metavar="URI", help="Container image of the reducers."
)
@click.option(
    "--worker-image",
    metavar="URI",
    help="Container image of the workers for which CONFIG names no image.",
)
@click.option(
    "--reducer-machine",
    metavar="TYPE",
    default=DEFAULT_REDUCER,
    show_default=True,
    help="Machine type of the reducers.",
)
@click.option(
    "--reducers",
    type=click.IntRange(1, 4096),
    help="Number of reducers. [default: enough for the workers' bandwidth]",
)
@click.option(
    "--worker-gbps",
    type=float,
    help="Gbit/s of a worker's NIC. [default: from the table of machines]",
)
@click.option(
    "--reducer-gbps",
    type=float,
    help="Gbit/s of a reducer's NIC. [default: from the table of machines]",
)
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_read_variables,
    help="Environment variable of the reducers' containers; may be given several times.",
)
@machines_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def command(config: BinaryIO, **given: Any) -> None:
    """Turn a Cloud ML Engine job into a Vertex AI job with reducers.

    CONFIG is the config.yaml of the Cloud ML Engine job. The command prints the workerPoolSpecs of
    the Vertex AI job. The reducers are the third worker pool, in place of the parameter servers. If
    the command cannot convert a field, it says so on stderr.

    \b
      reducer convert config.yaml --reducer-image registry/reducer:1 > job.yaml
      gcloud ai custom-jobs create --region=LOCATION --config=job.yaml ...
    """
    machines = load_machines(given["machines"])
    document = read_document(config)
    try:
        target = _make_target(given)
        training = read_training(Section("", document))
        job, notes = convert(training, target, machines, Host("worker", given["worker_gbps"]))
    except SpecError as error:
        raise click.UsageError(f"{name_file(config)}: {error}") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for note in notes:
        click.echo(note, err=True)
    shown = json.dumps(job, indent=2) if given["as_json"] else write_yaml(job)
    click.echo(shown.rstrip())


def _make_target(given: dict[str, Any]) -> Target:
    return Target(
        Host("reducer", given["reducer_gbps"], given["reducer_machine"]),
        given["reducer_image"],
        given["reducers"],
        given["worker_image"],
        given["environment"],
    )
