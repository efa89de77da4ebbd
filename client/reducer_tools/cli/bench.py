"""``reducer bench``: measures running reducers as nccl-tests measures NCCL."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from reducer.cli.addresses import addresses_option
from reducer_tools.bench.sweep import COLLECTIVES, DOWN, DTYPES, NARROW, OPS, Sweep
from reducer_tools.cli.sizes import size_option

if TYPE_CHECKING:
    from reducer_client.config import Settings
    from reducer_tools.bench.events import Event
    from reducer_tools.bench.ring_comparison import Rates

# The names that nccl-tests uses.
_DTYPE_NAMES = {"float": "float32", "double": "float64", "half": "float16"}
_OP_NAMES = {"avg": "mean"}
_LOCAL_WORKERS = 2
_CONFLICTS = (
    ("addresses", "local"),
    ("stepfactor", "stepbytes"),
    ("workers", "rank"),
    ("workers", "world_size"),
)
_COUNT = click.IntRange(1, 100_000)


def _size(*names: str, **options: Any) -> Callable[..., Any]:
    return click.option(*names, metavar="SIZE", callback=size_option, **options)


def _choice(
    *names: str, ours: Iterable[str], theirs: Iterable[str], help: str
) -> Callable[..., Any]:
    """An option that takes our names, which the help shows, and the names of nccl-tests."""
    choice = click.Choice([*ours, *theirs])
    text = f"{help}: {', '.join(ours)}."
    return click.option(*names, type=choice, metavar="NAME", default=next(iter(ours)), help=text)


@click.command("bench", context_settings={"show_default": True})
@_size("-b", "--minbytes", default="4K", help="First size; K, M and G are binary.")
@_size("-e", "--maxbytes", default="64M", help="Last size.")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(2), help="Factor between sizes. [default: 2]"
)
@_size("-i", "--stepbytes", help="Bytes to add between sizes; not together with --stepfactor.")
@click.option("-n", "--iters", type=_COUNT, default=20, help="Measured iterations per size.")
@click.option(
    "-w",
    "--warmup-iters",
    type=click.IntRange(0, 100_000),
    default=5,
    help="Iterations before the measured ones.",
)
@click.option(
    "-c",
    "--check",
    type=click.IntRange(0, 1),
    default=1,
    help="1: compare every element with the expected value; 0: compare nothing.",
)
@_choice("-d", "--datatype", ours=DTYPES, theirs=_DTYPE_NAMES, help="dtype of the arrays")
@_choice("-o", "--op", ours=OPS, theirs=_OP_NAMES, help="Operation")
@click.option(
    "--collective", type=click.Choice(COLLECTIVES), default="all_reduce", help="Collective to run."
)
@click.option("--wire-dtype", type=click.Choice(NARROW), help="Send float32 in this dtype.")
@click.option(
    "--down",
    type=click.Choice(DOWN),
    default="bfloat16",
    help="Dtype of quantised results; same: the dtype of the contributions.",
)
@addresses_option
@click.option("--local", type=click.IntRange(1, 64), help="Start this many reducers on this host.")
@click.option(
    "--lanes", type=click.IntRange(1, 64), help="Lanes of each local reducer. [default: 1]"
)
@click.option("--workers", type=click.IntRange(1, 256), help="Start this many ranks on this host.")
@click.option("--rank", type=int, help="Rank of this process. [env: REDUCER_RANK, RANK]")
@click.option(
    "--world-size", type=int, help="Number of ranks. [env: REDUCER_WORLD_SIZE, WORLD_SIZE]"
)
@click.option(
    "--job",
    help="Name of the job, the same on all ranks. [default: bench, or a new name with --workers]",
)
@click.option(
    "--connect-timeout", type=float, default=60.0, help="Seconds in which all ranks must join."
)
@click.option(
    "--worker-gbps",
    type=float,
    help="Gbit/s of a worker's NIC. The command then compares with the time that a ring needs.",
)
@click.option(
    "--reducer-gbps",
    type=float,
    help="Gbit/s of a reducer's NIC. The command then also computes the reducers' best time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")
def command(**given: Any) -> None:
    """Measure a collective over reducers, and check every result.

    Start the command as every rank of a job; rank 0 then prints the table. Or start it once with
    --workers: it then starts the ranks itself. With --local it also starts the reducers.

    \b
      reducer bench --local 2 --workers 4 -b 4K -e 64M
      reducer bench --workers 4 --addresses reducer-0:2222,reducer-1:2222
      torchrun ... --no-python reducer bench --addresses reducer-0:2222

    The exit status is 1 if any element was wrong.
    """
    from reducer_client import ReducerError
    from reducer_tools.bench.ring_comparison import Rates
    from reducer_tools.children import WorkerError

    if given["local"] and given["workers"] is None:
        given["workers"] = _LOCAL_WORKERS
    _refuse_conflicts(given)
    with ExitStack() as stack:
        try:
            sweep = _make_sweep(given)
            rates = Rates(given["worker_gbps"], given["reducer_gbps"])
            settings = _resolve(given, stack)
            sweep.counts(settings.world_size)
        except ValueError as error:
            hint = "" if given["workers"] else "; --workers starts all ranks on this host"
            raise click.UsageError(f"{error}{hint}") from None
        try:
            wrong = _run(settings, sweep, rates, given)
        except (WorkerError, ReducerError, ValueError) as error:
            raise click.ClickException(str(error)) from error
    sys.exit(1 if wrong else 0)


def _refuse_conflicts(given: dict[str, Any]) -> None:
    for one, other in _CONFLICTS:
        if given[one] is not None and given[other] is not None:
            flags = f"--{one} and --{other}".replace("_", "-")
            raise click.UsageError(f"{flags}: expected one of them, got both")
    if given["lanes"] and not given["local"]:
        raise click.UsageError("--lanes: expected only with --local; a daemon has its own lanes")


def _make_sweep(given: dict[str, Any]) -> Sweep:
    return Sweep(
        collective=given["collective"],
        dtype=_DTYPE_NAMES.get(given["datatype"], given["datatype"]),
        op=_OP_NAMES.get(given["op"], given["op"]),
        wire_dtype=given["wire_dtype"],
        min_bytes=given["minbytes"],
        max_bytes=given["maxbytes"],
        step_factor=given["stepfactor"] or 2,
        step_bytes=given["stepbytes"],
        iters=given["iters"],
        warmup=given["warmup_iters"],
        check=bool(given["check"]),
        down=given["down"],
    )


def _resolve(given: dict[str, Any], stack: ExitStack) -> Settings:
    """Resolve the reducers and this process's rank. Local reducers are started and end with
    ``stack``.

    With --workers the job has a random name, so that two such benches can use the same reducers.
    """
    from reducer_client import config, local_reducers

    addresses, workers = given["addresses"], given["workers"]
    if given["local"]:
        reducers = local_reducers(given["local"], lanes=given["lanes"] or 1)
        addresses = stack.enter_context(reducers)
    return config.resolve(
        config.Given(
            addresses=addresses,
            job=given["job"] or (f"bench-{secrets.token_hex(4)}" if workers else "bench"),
            rank=0 if workers else given["rank"],
            world_size=workers or given["world_size"],
            connect_timeout=given["connect_timeout"],
        )
    )


def _run(settings: Settings, sweep: Sweep, rates: Rates, given: dict[str, Any]) -> int:
    """Measure and print. Returns the number of wrong elements."""
    from reducer_tools.bench.display import Display
    from reducer_tools.bench.progress import Progress
    from reducer_tools.bench.rank import measure
    from reducer_tools.bench.workers import run_workers

    with Progress(sys.stderr) as progress:
        show = Display(sys.stdout, progress, rates, given["as_json"])
        if given["workers"]:
            wrong = run_workers(settings, sweep, show, progress.draws)
        else:
            wrong = measure(settings, sweep, show if settings.rank == 0 else _silent)
        show.end()
    return wrong


def _silent(event: Event) -> None:
    """The emit function of ranks other than 0, which print nothing."""
