"""The page of all settings: of workers from the client's table, of reducers from the daemon's."""

from __future__ import annotations

from dataclasses import fields

from reducer.server import serve_options
from reducer_client.config import JobSettings
from reducer_client.config.given import Setting
from reducer_client.config.given import settings as settings_of_workers

_INTRO = """\
# Settings

Every setting has one name. A worker takes the first value that is given, in this order: the
argument of `connect`, the variable, the value from the launcher or the cluster (`reducer env`
prints it), the default. The order for a reducer is: the option on the command line, the variable,
the TOML file that `--config` or `REDUCER_CONFIG` names, the value from the cluster, the default.
`reducer config` prints the values in effect and the source of each.

## Workers

The argument is one of `reducer_client.connect`. *Options* says whether
`reducer_client.torch.Options` has a field of this name for `init_process_group("reducer")`, and
*NCCL* whether the plugin for NCCL takes the variable. The plugin has [further
variables](../nccl_plugin/README.md#inactive-unless-it-is-configured) of its own.

| argument | variable | default | Options | NCCL | meaning |
|---|---|---|---|---|---|
"""
_IN_PLACE = {
    "rank": "torch's rank",
    "world_size": "torch's world size",
    "run_id": "made by rank 0",
    "step_timeout": "`timeout=` of torch",
}
# Variables without an argument: what differs between the machines of a job, and what must be known
# before a program runs.
ALONE = {
    "REDUCER_SERVICE": "Kubernetes: name of the headless Service of the reducers' pods.",
    "REDUCER_REPLICAS": "Kubernetes: number of the reducers' pods.",
    "REDUCER_SOCKET_IFNAME": "Interface whose address a hosted reducer uses.",
    "REDUCER_HOSTED_PORTS": "Port, or FIRST-LAST, for a hosted reducer.",
    "REDUCER_GBPS": "Rate of this machine's NIC in Gbit/s, for the shares of hosted reducers.",
    "REDUCER_DEDICATED_GBPS": "Rates of the dedicated reducers in Gbit/s: one for all, or a list.",
    "REDUCER_MEETING": "Address at which the ranks of a job without reducers meet.",
    "REDUCER_REGISTRY": "Address of the registry, for elastic jobs and tables.",
    "REDUCER_WORKERS": "Elastic jobs: number of workers with which the job starts.",
    "REDUCER_MIN_WORKERS": "Elastic jobs: the least number of workers.",
    "REDUCER_DISCOVER": "Elastic jobs: name:port that resolves to the reducers.",
    "REDUCER_DEBUG": "Level, or LEVEL:SUBSYSTEM,..., of the log on stderr.",
    "REDUCER_LOG_FORMAT": "Form of the log: text or json.",
    "REDUCER_NO_NATIVE": "1 during installation: no compiler is needed; NumPy sums; no client.",
}


def page() -> str:
    """The text of the page."""
    workers = "\n".join(_worker_row(name, setting) for name, setting in settings_of_workers())
    alone = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in ALONE.items())
    reducers = "\n".join(
        f"| `{serve_options.flag_name(name)}` | `{serve_options.env_name(name)}` "
        f"| {_code(option.default)} | {_escaped(option.help)} |"
        for name, option in serve_options.options().items()
    )
    return (
        f"{_INTRO}{workers}\n\n## Variables without an argument\n\n"
        f"| variable | meaning |\n|---|---|\n{alone}\n\n## Reducers\n\n"
        "The key in a TOML file is the name of the option without dashes in front.\n\n"
        f"| option | variable | default | meaning |\n|---|---|---|---|\n{reducers}\n"
    )


def _worker_row(name: str, setting: Setting) -> str:
    of_torch = "yes" if name in _JOB else _IN_PLACE[name]
    default = setting.shown or _code(setting.default)
    cells = (f"`{name}`", _code(setting.variable), default, of_torch, "yes" * setting.plugin)
    return f"| {' | '.join(cells)} | {_escaped(setting.help)} |"


_JOB = {each.name for each in fields(JobSettings)}


def _code(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text}`" if text else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
