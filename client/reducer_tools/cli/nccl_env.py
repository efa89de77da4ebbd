"""``reducer nccl env``: prints the variables to set for the installed NCCL."""

from __future__ import annotations

from pathlib import Path

import click

from reducer.cli.addresses import addresses_option
from reducer_tools.cli.nccl_version import version_option
from reducer_tools.nccl.versions import Version


@click.command("env")
@version_option
@addresses_option
@click.option(
    "--library",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Plugin, or the folder that has it. [default: where the loader finds it, or "
    "/usr/local/lib]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Send all-reduces of every size through the reducers, not only large ones.",
)
@click.option("--shell", is_flag=True, help='Print lines for eval "$(reducer nccl env --shell)".')
def command(
    version: Version | None, addresses: str | None, library: Path | None, force: bool, shell: bool
) -> None:
    """Print the variables with which the installed NCCL uses the plugin.

    \b
      reducer nccl env --addresses reducer-0:2222,reducer-1:2222
      eval "$(reducer nccl env --shell --addresses reducer-0:2222,reducer-1:2222)"
    """
    from reducer.cluster.variables import ClusterError
    from reducer_tools.nccl import config, rdma, variables
    from reducer_tools.nccl.installed import NotFoundError, find_nccl, find_plugin
    from reducer_tools.nccl.versions import refusal

    around = config.read()
    try:
        found = [] if version else find_nccl(around)
        plugin = find_plugin(around, library)
    except NotFoundError as error:
        raise click.ClickException(str(error)) from None
    used = version or found[0].version
    if refused := refusal(used):
        raise click.ClickException(refused)
    try:
        lines = variables.to_set(used, plugin, addresses or "", force, around)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    if shell:
        click.echo(variables.as_shell(lines))
        missing = ", ".join(line.name for line in lines if not line.value)
        if missing:
            click.echo(f"not set, because no value was given: {missing} (--addresses)", err=True)
        return
    title = [f"NCCL {used}: {found[0].path if found else 'as --version says'}"]
    title += [f"NCCL {other.version}, too: {other.path}" for other in found[1:]]
    title += [f"plugin: {plugin}", *(f"NCCL {note}" for note in variables.notes(used, force))]
    title += [text] if (text := rdma.unused_rdma()) else []
    click.echo(variables.as_text(title, lines))
