"""``reducer nccl check``: proves that the NCCL plugin sends all-reduces through the reducers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from reducer.cli.addresses import addresses_option
from reducer_tools.cli.nccl_version import version_option
from reducer_tools.cli.sizes import size_option
from reducer_tools.nccl.versions import Version

# The plugin's default is a minute, which is too long for an interactive command.
_CONNECT_SECONDS = "10"


def _size(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    from reducer_tools.nccl.rank import SMALLEST

    size = size_option(ctx, parameter, value)
    if size is not None and size < SMALLEST:
        raise click.BadParameter(f"expected at least {SMALLEST} bytes (an element), got {value!r}")
    return size


@click.command("check")
@version_option
@click.option(
    "--ranks", type=click.IntRange(1, 16), default=2, show_default=True, help="Ranks to start."
)
@click.option(
    "-b",
    "--bytes",
    "size",
    metavar="SIZE",
    callback=_size,
    default="4M",
    show_default=True,
    help="Bytes of float32 to all-reduce. The command also all-reduces as many elements of "
    "bfloat16. K, M and G are binary.",
)
@addresses_option
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Log of a job with NCCL_DEBUG=INFO. The command also says whether this job used the "
    "reducers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    version: Version | None,
    ranks: int,
    size: int,
    addresses: str | None,
    log: Path | None,
    as_json: bool,
) -> None:
    """Prove that the NCCL plugin sends all-reduces through the reducers.

    If a plugin does not work, NCCL uses its own network instead, without an error. This command
    loads the plugin that the installed NCCL would load, and calls the plugin's tables as NCCL does,
    with ranks on this host. The command compares every element, asks the reducers how many bytes
    they have moved, and checks whether the environment lets NCCL use the plugin. No GPU is needed.
    The ranks wait 10 seconds for the reducers, or as long as REDUCER_CONNECT_TIMEOUT says.

    The exit status is 0 only if the reducers have counted the bytes, and the environment lets NCCL
    use the plugin.
    """
    from reducer_tools.nccl import config, report
    from reducer_tools.nccl.check import CheckOptions, check

    environment = config.read(addresses, REDUCER_CONNECT_TIMEOUT=_CONNECT_SECONDS)
    found = check(CheckOptions(version, ranks, size, log), environment)
    click.echo(json.dumps(report.as_json(found)) if as_json else report.as_text(found))
    sys.exit(0 if found.good else 1)
