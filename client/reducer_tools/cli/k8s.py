"""``reducer k8s``: prints manifests for Kubernetes."""

from __future__ import annotations

import shlex
from typing import Any

import click
from click.core import ParameterSource

from reducer.units import format_size
from reducer_tools.cli.documents import write_yaml
from reducer_tools.cli.sizes import size_option
from reducer_tools.k8s.render import KINDS, render
from reducer_tools.k8s.settings import Reducers, SettingsError, Workers

_WITH_WORKERS = ("jobset", "trainer")
# Options that only some kinds use. With another kind the command refuses them.
_KINDS_OF = {
    "monitoring_namespace": ("pool",),
    "registry": ("pool",),
    "workers": _WITH_WORKERS,
    "worker_image": _WITH_WORKERS,
    "gpus": _WITH_WORKERS,
    "worker_command": _WITH_WORKERS,
}


@click.group("k8s")
def command() -> None:
    """Print manifests for Kubernetes."""


@command.command("render")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    required=True,
    help="pool: reducers that many jobs share; jobset: workers with reducers of their own; "
    "trainer: a runtime of Kubeflow Trainer, each of whose jobs gets reducers of its own.",
)
@click.option("--name", default="reducer", show_default=True, help="Name of the deployment.")
@click.option(
    "--namespace",
    default="",
    help="Namespace. Without this option a pool is in the namespace default, a jobset in the "
    "current namespace of kubectl, and a runtime of Trainer is for all namespaces.",
)
@click.option("--replicas", default=4, show_default=True, help="Number of reducers.")
@click.option("--image", default=Reducers.image, show_default=True, help="Image of the reducers.")
@click.option(
    "--cpus",
    default=4,
    show_default=True,
    help="Cores of each reducer. It has three lanes for every four cores, at least one.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=size_option,
    default="8GiB",
    show_default=True,
    help="--memory of `reducer serve`. The memory limit of the pod is higher.",
)
@click.option(
    "--key-secret",
    default="",
    help="Name of the Secret whose entry 'key' is the key file; in the namespace of the pods.",
)
@click.option(
    "--insecure", is_flag=True, help="Start the reducers without a key: they serve everybody."
)
@click.option(
    "--monitoring-namespace",
    default="",
    help="Only for a pool: namespace of the Prometheus that may scrape the reducers.",
)
@click.option(
    "--registry",
    metavar="SIZE",
    default="",
    help="Only for a pool: size of a volume for each reducer's registry, such as 1Gi. Elastic jobs "
    "and tables need a registry.",
)
@click.option("--workers", default=4, show_default=True, help="Number of workers; not for a pool.")
@click.option(
    "--worker-image", default=Workers.image, show_default=True, help="Image of the workers."
)
@click.option("--gpus", default=1, show_default=True, help="GPUs of each worker.")
@click.argument("worker_command", nargs=-1, metavar="[-- COMMAND...]")
@click.pass_context
def render_command(
    context: click.Context,
    /,
    kind: str,
    workers: int,
    worker_image: str,
    gpus: int,
    worker_command: tuple[str, ...],
    **options: Any,
) -> None:
    """Print the manifests of a deployment as YAML.

    COMMAND is the command of the workers, by default torchrun train.py. `reducer keygen key` makes
    the key file; `kubectl create secret generic NAME --from-file=key` makes the Secret for
    --key-secret.
    """
    _check_kind(context, kind)
    try:
        reducers = Reducers(**options)
        crew = Workers(workers, worker_image, gpus, worker_command or Workers.command)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    manifests = render(kind, reducers, crew)
    click.echo(write_yaml(*manifests, comments=[_repeat(context)], width=100), nl=False)


def _check_kind(context: click.Context, kind: str) -> None:
    """Raise UsageError if an option was given that belongs to another kind."""
    for parameter in context.command.params:
        name = parameter.name or ""
        kinds = _KINDS_OF.get(name, KINDS)
        given = context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if given and kind not in kinds:
            what = "COMMAND" if isinstance(parameter, click.Argument) else parameter.opts[0]
            raise click.UsageError(f"{what} is for --kind {' or '.join(kinds)}; got --kind {kind}")


def _repeat(context: click.Context) -> str:
    """The command line that prints the same manifests again."""
    words = ["reducer", "k8s", "render"]
    for parameter in context.command.params:
        value = context.params[parameter.name or ""]
        if context.get_parameter_source(parameter.name or "") != ParameterSource.COMMANDLINE:
            continue
        if isinstance(parameter, click.Argument):
            words += ["--", *value]
        elif value is True:
            words.append(parameter.opts[0])
        else:
            words += [
                parameter.opts[0],
                format_size(value) if parameter.name == "memory" else value,
            ]
    return shlex.join(map(str, words))
