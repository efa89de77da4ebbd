"""``reducer plan``: computes how many dedicated reducers a cluster needs, and when they pay off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import click

from reducer.wire.codes import ITEM_SIZES, DType
from reducer_tools.cli import plan_link
from reducer_tools.cli.documents import name_file, read_document
from reducer_tools.cli.extras import need
from reducer_tools.cli.machines import builtin_machines, load_machines, machines_option
from reducer_tools.cli.sizes import count_option, seconds_option, size_option
from reducer_tools.planner import report, request, specs
from reducer_tools.planner.fields import SpecError
from reducer_tools.planner.lanes import Flows
from reducer_tools.planner.plan import Plan
from reducer_tools.planner.pools import Job

_DTYPES = {DType(dtype).name.lower(): size for dtype, size in ITEM_SIZES.items()}
_DEFAULT_BYTES = 400 << 20


def _time(name: str, help: str) -> Callable[..., Any]:
    return click.option(name, metavar="TIME", callback=seconds_option, help=help)


@click.command("plan")
@click.option("--workers", type=int, help="Number of workers: hosts that each have a NIC.")
@click.option("--worker-gbps", type=float, help="Gbit/s of a worker's NIC, each way.")
@click.option(
    "--worker-machine",
    metavar="TYPE",
    help="Machine type of a worker: its row in the table of machines has the Gbit/s, and perhaps "
    "a price. --worker-gbps and --worker-price take precedence.",
)
@click.option("--worker-price", type=float, help="Price of a worker per hour, in any currency.")
@click.option(
    "--reducers",
    type=int,
    help="Number of dedicated reducers; 0 means that the workers host all reducers. [default: "
    "enough for the workers' bandwidth]",
)
@click.option("--reducer-gbps", type=float, help="Gbit/s of a reducer's NIC, each way.")
@click.option(
    "--reducer-machine",
    metavar="TYPE",
    help="Machine type of a reducer: its row in the table of machines has the Gbit/s, and perhaps "
    "a price. --reducer-gbps and --reducer-price take precedence.",
)
@click.option(
    "--reducer-price", type=float, help="Price of a reducer per hour, in the same currency."
)
@click.option(
    "--flow-gbps",
    type=float,
    help="Limit of the network for one TCP connection in Gbit/s, each way: 5 on Amazon EC2, 10 in "
    "a cluster placement group. [default: no limit]",
)
@click.option(
    "--lanes",
    type=int,
    help="Number of lanes of each reducer, for --flow-gbps. A worker has a connection to each lane "
    "of each reducer. [default: the recommended number]",
)
@click.option(
    "--gradient-bytes",
    metavar="SIZE",
    callback=size_option,
    help="Bytes of gradients that a worker reduces in a step; K, M and G are binary. "
    "[default: 400M]",
)
@click.option(
    "--parameters",
    "--params",
    metavar="COUNT",
    callback=count_option,
    help="Number of parameters of the model, such as 340M or 7B. The command then computes "
    "--gradient-bytes from this number and --dtype.",
)
@click.option(
    "--dtype",
    type=click.Choice([*_DTYPES]),
    metavar="NAME",
    help=f"dtype in which the gradients of --parameters are sent: {', '.join(_DTYPES)}. "
    "[default: float32]",
)
@_time(
    "--step",
    "Measured time of a training step over a ring, such as 250ms; with --link, the time of a step "
    "without communication.",
)
@_time("--compute", "Time of a training step without communication, if --step is not given.")
@click.option(
    "--overlap",
    type=float,
    help="Fraction of the computation that overlaps with communication: 0 to 1. [default: 0; with "
    "--link 2/3, the fraction of the backward pass]",
)
@click.option(
    "--spec",
    type=click.File("rb"),
    help="File of a Vertex AI job, or a Cloud ML Engine config.yaml. It replaces --workers and "
    "--worker-machine.",
)
@machines_option
@click.option("--show-machines", is_flag=True, help="Print the table of machines as TOML.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a plot of the times over the number of dedicated reducers to this PNG file.",
)
@plan_link.link_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> None:
    """Compute how many dedicated reducers a cluster needs.

    Dedicated reducers have machines of their own. The workers host reducers as well, which sum the
    part of the gradients for which the dedicated reducers have no time. The command computes the
    time that each number of dedicated reducers saves over a ring, and the price below which they
    pay off. The times count the bytes on the NICs and the packet headers, and neither latency nor
    CPU time. They are therefore the best times that reducers and a ring can reach.

    With --link the command says how workers behind slow links keep their machines busy: with which
    wire dtype, or with DiLoCo or Streaming DiLoCo and which H. These times count the latency.

    \b
      reducer plan --workers 8 --worker-gbps 100 --reducer-gbps 32
      reducer plan --workers 4 --worker-gbps 100 --reducer-gbps 100 --reducers 0
      reducer plan --workers 8 --worker-gbps 100 --reducer-machine n1-highcpu-16 \\
          --parameters 340M --step 250ms --worker-price 30 --reducer-price 0.60
      reducer plan --workers 4 --worker-gbps 100 --reducer-gbps 100 --flow-gbps 5 --lanes 2
      reducer plan --spec job.yaml
      reducer plan --link 200mbit --rtt 30ms --params 1.1b --step 1.2s
    """
    if given["show_machines"]:
        click.echo(builtin_machines(), nl=False)
        return
    if given["link"] is not None:
        _answer_link(given)
        return
    machines = load_machines(given["machines"])
    job = _read_job(given["spec"])
    try:
        plan_link.refuse_without_link(given)
        plan, sizing = request.answer(_make_request(given), machines, job)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if given["plot"] is not None:
        _draw(plan, given["plot"])
    show = report.as_json if given["as_json"] else report.as_text
    shown = show(plan, sizing)
    click.echo(shown if isinstance(shown, str) else json.dumps(shown))


def _answer_link(given: dict[str, Any]) -> None:
    try:
        click.echo(plan_link.answer(given))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _make_request(given: dict[str, Any]) -> request.Request:
    return request.Request(
        worker=request.Host(
            "worker", given["worker_gbps"], given["worker_machine"], given["worker_price"]
        ),
        reducer=request.Host(
            "reducer", given["reducer_gbps"], given["reducer_machine"], given["reducer_price"]
        ),
        gradient_bytes=_gradient_bytes(given),
        workers=given["workers"],
        reducers=given["reducers"],
        step_seconds=given["step"],
        compute_seconds=given["compute"],
        overlap=given["overlap"] or 0.0,
        flows=Flows(given["flow_gbps"], given["lanes"]),
    )


def _gradient_bytes(given: dict[str, Any]) -> int:
    size, parameters = given["gradient_bytes"], given["parameters"]
    if parameters is None:
        if given["dtype"] is not None:
            raise ValueError(f"dtype: expected only with --parameters, got {given['dtype']}")
        return _DEFAULT_BYTES if size is None else int(size)
    if size is not None:
        raise ValueError("parameters, gradient-bytes: expected one of them, got both")
    return int(parameters) * _DTYPES[given["dtype"] or "float32"]


def _read_job(file: BinaryIO | None) -> Job | None:
    if file is None:
        return None
    try:
        return specs.read_job(read_document(file))
    except SpecError as error:
        raise click.UsageError(f"{name_file(file)}: {error}") from None


def _draw(plan: Plan, path: Path) -> None:
    need("--plot", "plot", matplotlib="matplotlib")
    from reducer_tools.planner.figure import draw

    try:
        draw(plan).savefig(path, format="png", dpi=130)
    except OSError as error:
        raise click.ClickException(f"--plot: {error}") from None
