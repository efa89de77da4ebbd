"""``reducer env``: the reducers and the rank found in the environment."""

from __future__ import annotations

import click

from reducer.cluster import report
from reducer.server import serve_options


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--shell", "as_shell", is_flag=True, help="Print export lines for a shell.")
def command(as_json: bool, as_shell: bool) -> None:
    """Print the reducers and the rank found in the environment.

    Each value is printed with its source. The REDUCER_* variables come first. After them the
    reducers come from Vertex (CLUSTER_SPEC), TF_CONFIG or Kubernetes, and the rank from torchrun,
    Horovod, Open MPI, Slurm, Vertex, TF_CONFIG or Kubernetes. With --shell the command prints the
    variables that torch.distributed needs:

    \b
      eval "$(reducer env --shell)"
    """
    if as_json and as_shell:
        raise click.UsageError("--json and --shell: expected one of them, got both")
    try:
        cluster = serve_options.find_cluster()
    except serve_options.ConfigError as error:
        raise click.ClickException(str(error)) from None
    show = report.as_json if as_json else report.as_shell if as_shell else report.as_text
    click.echo(show(cluster))
    missing = report.not_exported(cluster) if as_shell else []
    if missing:
        names = ", ".join(missing)
        click.echo(f"not found: {names}; `reducer env` says how to set them", err=True)
