"""The one table of options: command line, ``REDUCER_*`` environment, TOML file, defaults.

Every option is declared once, as a field of `Config`; flags, environment names, TOML keys, checks
and documentation are derived from it. Precedence: command line > environment > file > the cluster's
variables about this replica (`reducer.cluster`) > default. No other module of the daemon reads the
environment.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from reducer import keyfile
from reducer.cluster.discovery import Cluster, discover
from reducer.cluster.kubernetes import is_service_link
from reducer.cluster.listening import find_listening
from reducer.cluster.variables import ClusterError
from reducer.cores import usable_cores
from reducer.kernels import Choice
from reducer.log import parse_debug
from reducer.units import (
    auto_lanes,
    format_bool,
    format_lanes,
    format_seconds,
    format_size,
    parse_bool,
    parse_int,
    parse_lanes,
    parse_seconds,
    parse_size,
)
from reducer.wire.codes import MAX_REDUCERS

ENV_PREFIX = "REDUCER_"
FILE_ENV = "REDUCER_CONFIG"


class ConfigError(ValueError):
    """An option has an unusable value; the text gives the option, its source and the reason."""


@dataclass(frozen=True)
class Option:
    """An option's flags, variable, unit, limits and help. Its name and type come from the field."""

    help: str
    parse: Callable[[str], Any]
    format: Callable[[Any], str]
    default: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    variable: str = ""  # the name after REDUCER_, if it is not the option's own

    @property
    def flag(self) -> bool:
        """Whether the option is a switch, which has no value on the command line."""
        return self.parse is parse_bool


def _option(
    default: str, help: str, parse: Callable[[str], Any] = str, **more: Any
) -> Any:  # the declared type of the field is what mypy checks
    formats: dict[Any, tuple[Callable[[Any], str], str]] = {
        parse_size: (format_size, "size"),
        parse_seconds: (format_seconds, "time"),
        parse_bool: (format_bool, ""),
        parse_lanes: (format_lanes, "processes"),
    }
    show, unit = formats.get(parse, (str, ""))
    option = Option(help, parse, show, default, unit, **more)
    return field(default=parse(default), metadata={"option": option})


def _debug(text: str) -> str:
    parse_debug(text)
    return text


@dataclass(frozen=True)
class Config:
    """The effective options of one daemon. Sizes are bytes, times are seconds."""

    host: str = _option("127.0.0.1", "Address or name to listen on; '::' listens on IPv4 and IPv6.")
    port: int = _option("2222", "TCP port for workers; 0: any free one.", parse_int, most=65535)
    lanes: int = _option(
        "auto",
        "Number of lane processes; 'auto': three quarters of the cores that the daemon may use, at "
        "least one. The kernel needs the other cores to receive packets.",
        parse_lanes,
        most=1024,
    )
    pin: bool = _option(
        "false",
        "Bind each lane to a core of its own, whose NUMA node then has the lane's memory. Cores of "
        "the NIC's NUMA node are used first, and hardware threads of a used core last. For "
        "machines that run nothing else.",
        parse_bool,
    )
    memory: int = _option(
        "8GiB",
        "Memory for contributions, results and records of runs. Each lane gets an equal part.",
        parse_size,
        least=1 << 20,
    )
    metrics_host: str = _option(
        "127.0.0.1", "Address of the status page, /metrics, /healthz, /readyz."
    )
    metrics_port: int = _option(
        "2223", "TCP port of the metrics; 0: any free one.", parse_int, most=65535
    )
    insecure: bool = _option(
        "false",
        "Serve everybody on an address beyond loopback, without authentication or encryption.",
        parse_bool,
    )
    key_file: str = _option(
        "",
        "Key file of the reducers, which `reducer keygen` makes. Workers must have this key, or "
        "the key of their job.",
    )
    tls_cert: str = _option(
        "",
        "PEM file with this reducer's certificate and its chain; workers then need certificates, "
        "too.",
    )
    tls_key: str = _option("", "PEM file with the private key of --tls-cert.")
    tls_ca: str = _option("", "PEM file with the CA that signs the workers' certificates.")
    credit: int = _option(
        "4MiB",
        "Credit of one worker on a lane, the worker's window: the bytes that it may send before "
        "the lane answers. The oldest open round may use two chunks more. If memory is short, the "
        "credit is smaller.",
        parse_size,
        least=4096,
        most=1 << 30,
    )
    records: int = _option(
        "8MiB",
        "Memory for a run's bookkeeping (keys, their names, rounds): bytes on each lane for each "
        "worker. Part of --memory.",
        parse_size,
        least=32_768,
        most=1 << 30,
    )
    stall_after: float = _option(
        "10s",
        "Time without progress after which an open round is reported as stalled.",
        parse_seconds,
        least=0.1,
    )
    drain_timeout: float = _option(
        "10s",
        "Time for open rounds to finish after SIGTERM. If they do not, the exit status is 1.",
        parse_seconds,
    )
    drained_status: int = _option(
        "0",
        "Exit status after a drain on SIGTERM. A value other than 0 makes a Kubernetes Job restart "
        "the pod.",
        parse_int,
        most=255,
    )
    slow_reader_timeout: float = _option(
        "10s",
        "Time after which a worker that reads none of the data waiting for it is disconnected.",
        parse_seconds,
        least=0.1,
    )
    congestion: str = _option(
        "", "TCP congestion control, such as cubic or bbr; empty: the system's default."
    )
    local_socket: bool = _option(
        "true",
        "Serve workers on this machine over a Unix socket too, which is faster than TCP.",
        parse_bool,
    )
    job_memory: int = _option(
        "0",
        "Maximum memory that one job may reserve; 0: no limit but --memory.",
        parse_size,
    )
    max_keys: int = _option(
        "200000",
        "Maximum number of keys (names of tensors, not secrets) that one run may use on a lane at "
        "a time. The limit rises by the same number for each lost reducer whose chunks the lane "
        "takes over. Each group of a job's workers is a run.",
        parse_int,
        least=1,
    )
    max_total_runs: int = _option(
        "1024",
        "Maximum number of concurrent runs, over all jobs. Each group of a job's workers is a run, "
        "so a job may have several.",
        parse_int,
        least=1,
        most=65535,
    )
    max_runs: int = _option(
        "256",
        "Maximum number of concurrent runs of one job.",
        parse_int,
        least=1,
        most=65535,
    )
    max_reducers: int = _option(
        "512",
        "Maximum number of reducers that one job may use. When one of them is lost or comes back, "
        "every lane assigns the job's chunks to reducers again. This takes 0.4 us for each reducer "
        "of the job; other jobs wait meanwhile.",
        parse_int,
        least=1,
        most=MAX_REDUCERS,
    )
    kernels: Choice = _option(
        "auto",
        "Kernels that sum gradients. auto: native ones if this installation has them, else "
        "NumPy's. native: refuse to start without native ones. numpy: NumPy's in any case.",
        choices=("auto", "native", "numpy"),
    )
    timeline: str = _option(
        "",
        "Folder on a local disk to which each lane writes a timeline of its rounds, for `reducer "
        "timeline`.",
    )
    registry: str = _option(
        "",
        "File on a local disk with the registry, which workers that come and go share: workers "
        "find it at this reducer's address. The file is made if there is none.",
        variable="REGISTRY_FILE",
    )
    log_level: str = _option(
        "info", "Lowest level that is logged.", choices=("debug", "info", "warning", "error")
    )
    debug: str = _option(
        "",
        "Detail of the log: warn, info or trace, for all subsystems or for some, such as "
        "trace:lane,auth. The daemon's subsystems are server, acceptor, auth, admin, lanes (starts "
        "and ends of the lane processes) and lane (their work). Overrides --log-level.",
        _debug,
    )
    log_format: str = _option("text", "Format of the log lines.", choices=("text", "json"))

    @property
    def mode(self) -> str:
        """How workers prove who they are: open (not at all), psk or tls."""
        return "tls" if self.tls_cert else "psk" if self.key_file else "open"

    @property
    def lane_count(self) -> int:
        """The number of lanes, with ``auto`` resolved."""
        return self.lanes or auto_lanes(usable_cores())


def options() -> dict[str, Option]:
    """The table by field name, in the order of the documentation."""
    return {item.name: item.metadata["option"] for item in fields(Config)}


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_name(name: str) -> str:
    return ENV_PREFIX + (options()[name].variable or name.upper())


@dataclass(frozen=True)
class Effective:
    """A configuration, and in words the source of each option's value."""

    config: Config
    sources: Mapping[str, str]


def load(
    arguments: Mapping[str, str],
    *,
    file: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Effective:
    """Merge the sources; ``arguments`` holds only options that the command line gives.

    Raises ConfigError for an unreadable file, an unknown key or a value out of range.
    """
    env = os.environ if env is None else env
    path = file or env.get(FILE_ENV, "")
    from_file = _read_file(path) if path else {}
    from_env = {name: env[env_name(name)] for name in options() if env_name(name) in env}
    from_cluster = _of_replica(env, {*arguments, *from_env, *from_file})
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, option in options().items():
        if name in arguments:
            text, source = arguments[name], f"command line {flag_name(name)}"
        elif name in from_env:
            text, source = from_env[name], f"environment {env_name(name)}"
        elif name in from_file:
            text, source = from_file[name], f"file {path}"
        elif name in from_cluster:
            text, source = from_cluster[name]
        else:
            text, source = option.default, "default"
        values[name] = _checked(name, option, text, source)
        sources[name] = source
    return Effective(Config(**values), sources)


def _of_replica(env: Mapping[str, str], named: set[str]) -> dict[str, tuple[str, str]]:
    """Text and source of the options that follow from the cluster's variables, unless they are
    `named`.

    On Vertex alone, the reducer serves in open mode if no host, key or certificate is given: the
    network is the job's own there (SECURITY.md). A TF_CONFIG may belong to a cluster that others
    use too.
    """
    if {"host", "port"} <= named:
        return {}
    try:
        listening = find_listening(env)
    except ClusterError as error:
        raise ConfigError(str(error)) from None
    if listening is None:
        return {}
    host, port = listening.value
    found = {"host": host, "port": str(port)}
    protection = {"host", "insecure", "key_file", *_TLS_OPTIONS} & named
    if listening.source == "CLUSTER_SPEC" and not protection and not is_loopback(host):
        found["insecure"] = "true"
    return {name: (text, listening.source) for name, text in found.items()}


def find_cluster() -> Cluster:
    """Find reducers and ranks in the environment. Raises ConfigError."""
    try:
        return discover(os.environ)
    except ClusterError as error:
        raise ConfigError(str(error)) from None


def _checked(name: str, option: Option, text: str, source: str) -> Any:
    where = f"{name.replace('_', '-')} ({source})"
    if source.startswith("environment") and is_service_link(text):
        raise ConfigError(
            f"{where}: got {text!r}, which Kubernetes sets for a Service of this name. "
            "Put enableServiceLinks: false into the pod's spec, or rename the Service."
        )
    try:
        value = option.parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}: got {text!r}; {error}") from None
    if option.choices and value not in option.choices:
        raise ConfigError(f"{where}: got {text!r}; expected one of {', '.join(option.choices)}")
    if isinstance(value, (int, float)):
        least = option.least or 0
        most = math.inf if option.most is None else option.most
        if not least <= value <= most:
            bounds = f"at least {option.format(least)}"
            bounds += "" if option.most is None else f" and at most {option.format(option.most)}"
            raise ConfigError(f"{where}: got {text!r}; expected {bounds}")
    return value


def _read_file(path: str) -> dict[str, str]:
    import difflib  # most daemons have no file
    import tomllib

    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration file {path}: {error}") from None
    for key, value in table.items():
        if key not in options():
            near = difflib.get_close_matches(key, options(), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"configuration file {path}: unknown option {key!r}{hint}")
        if not isinstance(value, (str, int, float, bool)):
            raise ConfigError(
                f"configuration file {path}: {key!r}: expected a string, a number, true or false, "
                f"got {value!r:.80}"
            )
    return {
        key: format_bool(value) if isinstance(value, bool) else str(value)
        for key, value in table.items()
    }


def check_protection(config: Config) -> None:
    """Refuse to serve without protection unless the user asks for that explicitly.

    Raises ConfigError for an address beyond loopback with neither protection nor consent, for two
    of these at once, and for an incomplete set of TLS files.
    """
    given = [name for name in ("key_file", "tls_cert", "insecure") if getattr(config, name)]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(map(_both_names, given))} are both set: expected one of them. A "
            "reducer with a key or a certificate serves only workers that have one."
        )
    missing = [name for name in _TLS_OPTIONS if not getattr(config, name)]
    if 0 < len(missing) < len(_TLS_OPTIONS):
        raise ConfigError(
            f"mode tls needs {', '.join(map(_both_names, _TLS_OPTIONS))}; missing: "
            f"{', '.join(map(flag_name, missing))}"
        )
    if not (given or is_loopback(config.host)):
        raise ConfigError(
            f"--host {config.host} is beyond loopback: anyone who reaches it could join. Give "
            f"{_both_names('key_file')}, or {_both_names('tls_cert')} and its key and CA, or "
            f"--insecure ({env_name('insecure')}=1) in a network that you trust."
        )


def check_pin(config: Config) -> None:
    """Raises ConfigError if lanes are to be bound to cores and there are fewer cores than lanes."""
    cores = len(os.sched_getaffinity(0))
    if config.pin and config.lane_count > cores:
        raise ConfigError(
            f"{_both_names('pin')} binds each lane to a core of its own: {flag_name('lanes')} "
            f"{config.lane_count} needs {config.lane_count} cores, and the daemon may use {cores} "
            f"(taskset, cpuset). Give it more cores, or fewer lanes ({flag_name('lanes')} auto: "
            f"{auto_lanes(usable_cores())}), or leave {flag_name('pin')} out: the kernel then "
            "spreads the lanes."
        )


_TLS_OPTIONS = ("tls_cert", "tls_key", "tls_ca")


def _both_names(name: str) -> str:
    return f"{flag_name(name)} ({env_name(name)})"


def read_key(config: Config) -> bytes:
    """The key of the key file, b"" without one; raises ConfigError for an unusable file."""
    try:
        return keyfile.read(config.key_file) if config.key_file else b""
    except keyfile.KeyFileError as error:
        raise ConfigError(str(error)) from None


def make_timeline_folder(config: Config) -> None:
    """Make the folder of the timeline, if one is set; raises ConfigError if it cannot be written
    to.
    """
    if not config.timeline:
        return
    try:
        Path(config.timeline).mkdir(parents=True, exist_ok=True)
        if not os.access(config.timeline, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"{_both_names('timeline')} {config.timeline}: expected a folder that this user may "
            f"write to: {error.strerror}"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether all addresses of ``host`` are loopback; False for a name that does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(item[4][0])).is_loopback for item in found)


def child_environment() -> dict[str, str]:
    """The environment of a lane process.

    It has the same code as this process, no BLAS threads, and its own secret for Python's dicts
    (`reducer.core.containers.tables`).
    """
    root = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    path = root + (os.pathsep + inherited if inherited else "")
    own = {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "random"}
    return {**os.environ, **own}


def document() -> str:
    """The table as an annotated TOML file with every default."""
    lines = ["# Options of the reducer daemon. Command line > environment > this file > default."]
    for name, option in options().items():
        lines += ["", f"# {option.help}"]
        facts = [f"{flag_name(name)}, {env_name(name)}"]
        facts += [f"unit: {option.unit}"] if option.unit else []
        facts += [f"least: {option.format(option.least)}"] if option.least is not None else []
        facts += [f"most: {option.format(option.most)}"] if option.most is not None else []
        facts += [f"one of: {', '.join(option.choices)}"] if option.choices else []
        lines.append("# " + "; ".join(facts))
        plain = option.flag or option.parse is parse_int
        lines.append(f"{name} = {option.default}" if plain else f'{name} = "{option.default}"')
    return "\n".join(lines) + "\n"
