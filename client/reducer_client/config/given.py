"""The one table of the client's settings: each is an argument, a variable, and a field here.

`JobSettings` are the settings of a job; ``reducer_client.torch.Options`` has them, too. `Given`
adds what torch says elsewhere, and is what ``connect`` was given. A field that is None takes the
variable's value, else the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from reducer.wire.codes import MAX_REDUCERS
from reducer_client.config.chunks import CHUNK_TABLE, WEIGHTS
from reducer_client.config.network import CONGESTION, SOURCE
from reducer_client.config.values import SECONDS, TEXT, Kind, integer, one_of
from reducer_client.hosted.hosting import Hosted

OnOverflow = Literal["flag", "error"]
OnNonfinite = Literal["propagate", "error"]
CudaWait = Literal["host", "stream"]
Transport = Literal["auto", "tcp"]
MAX_IO_THREADS = 16
_HOSTED: dict[Any, Hosted] = {
    **dict.fromkeys(("auto",), "auto"),
    **dict.fromkeys((True, "1", "true", "yes", "on"), True),
    **dict.fromkeys((False, "0", "false", "no", "off"), False),
}
# Stands for the variable that is named after its setting.
_BY_NAME = "REDUCER_<NAME>"


def _check_hosted(value: Any) -> Hosted:
    found = _HOSTED.get(value.strip().lower() if isinstance(value, str) else value)
    if found is None:
        raise ValueError("expected auto, 1 or 0")
    return found


@dataclass(frozen=True)
class Setting:
    """A row of the table. Its name is the field's.

    Attributes:
        help: one sentence for the reference of settings.
        kind: how a value is read and checked. None: `reducer.cluster` finds the value.
        default: the value without argument and variable.
        shown: the default in words, if it is not ``default``.
        variable: the environment variable; "" for none. By default it is named after the setting.
        plugin: whether the plugin for NCCL takes the variable, too.
    """

    help: str
    kind: Kind[Any] | None
    default: Any
    shown: str
    variable: str
    plugin: bool


def _setting(
    help: str,
    kind: Kind[Any] | None = None,
    default: Any = None,
    *,
    shown: str = "",
    variable: str = _BY_NAME,
    plugin: bool = False,
    repr: bool = True,
) -> Any:  # the declared type of the field is what mypy checks
    setting = Setting(help, kind, default, shown, variable, plugin)
    return field(default=None, repr=repr, metadata={"setting": setting})


@dataclass(frozen=True)
class JobSettings:
    """What a program may say of a job, wherever it joins. None: not said.

    `reducer_client.connect` describes the settings.
    """

    addresses: str | Sequence[str] | None = _setting(
        "Addresses of the reducers, host:port, separated by commas.",
        variable="REDUCER_ADDRS",
        shown="the cluster's reducers, else the workers host reducers",
        plugin=True,
    )
    job: str | None = _setting(
        "Name of the job, equal on all ranks.",
        shown="the launcher's name of the job; for process groups of torch else the script's",
        plugin=True,
    )
    connect_timeout: float | None = _setting(
        "Seconds to reach the reducers and to meet all ranks.", SECONDS, 60.0, plugin=True
    )
    # A live reducer sends something every heartbeat (0.25 s).
    silence: float | None = _setting(
        "Seconds without a byte from a reducer after which the others take over its work.",
        SECONDS,
        1.0,
        plugin=True,
    )
    # A live worker does so as well, but a false alarm ends the job, so lanes wait longer.
    worker_silence: float | None = _setting(
        "Seconds (1 to 3,600) without a byte from a worker after which the worker counts as lost.",
        SECONDS,
        5.0,
        plugin=True,
    )
    # A restarted daemon or a rescheduled pod needs less time than this.
    reducer_wait: float | None = _setting(
        "Seconds that open rounds wait for a reducer while there is none.",
        SECONDS,
        30.0,
        variable="REDUCER_WAIT",
        plugin=True,
    )
    on_overflow: OnOverflow | None = _setting(
        "What to do if an integer result wrapped: flag, or error.",
        one_of(get_args(OnOverflow)),
        "flag",
    )
    on_nonfinite: OnNonfinite | None = _setting(
        "What to do with NaN or Inf in a contribution or a result: propagate, or error.",
        one_of(get_args(OnNonfinite)),
        "propagate",
    )
    chunk_table: Sequence[tuple[int, int]] | None = _setting(
        "Sizes of chunks: rows of minimum bytes of a round and bytes of its chunks, such as "
        "0:64KiB,1MiB:256KiB.",
        CHUNK_TABLE,
        shown="by the number of reducers",
    )
    weights: Sequence[int] | None = _setting(
        "Shares of the work for each reducer, such as 3,3,1.",
        WEIGHTS,
        (),
        shown="equal shares",
        plugin=True,
    )
    min_reducers: int | None = _setting(
        "Number of reducers without which the job does not start.",
        integer(1, MAX_REDUCERS),
        1,
        plugin=True,
    )
    transport: Transport | None = _setting(
        "auto: Unix sockets to reducers on this machine, TCP to others; tcp: TCP to all.",
        one_of(get_args(Transport)),
        "auto",
        plugin=True,
    )
    congestion: str | None = _setting(
        "TCP congestion control of connections to the reducers, such as cubic.",
        CONGESTION,
        "",
        shown="the system's",
        plugin=True,
    )
    source: str | None = _setting(
        "Local address, or name of the interface, of TCP connections to the reducers.",
        SOURCE,
        "",
        shown="any",
        plugin=True,
    )
    digest_every: int | None = _setting(
        "Rounds of a key after which the ranks compare their results; 0: never.",
        integer(0, (1 << 32) - 1),
        0,
        plugin=True,
    )
    io_threads: int | None = _setting(
        "Threads that move this worker's bytes, 1 to 16; 0: by the NIC's rate.",
        integer(0, MAX_IO_THREADS),
        0,
        plugin=True,
    )
    timeline: str | None = _setting(
        "Folder for trace files of the rounds.", TEXT, "", shown="no trace files"
    )
    hosted: Hosted | None = _setting(
        "Whether the workers' machines run reducers, too: auto, 1 or 0.",
        Kind(_check_hosted),
        "auto",
    )
    cuda_wait: CudaWait | None = _setting(
        "Who waits for results on a CUDA device: the host, or only the stream.",
        one_of(get_args(CudaWait)),
        "host",
    )
    key: bytes | None = _setting(
        "The reducers' key, for programs that fetch secrets themselves.",
        shown="none",
        variable="",
        repr=False,
    )
    key_file: str | None = _setting(
        "File with the reducers' key or the job's key.", TEXT, "", shown="none", plugin=True
    )
    tls_cert: str | None = _setting(
        "PEM file with this worker's certificate and chain.", TEXT, "", shown="none"
    )
    tls_key: str | None = _setting(
        "PEM file with the private key of the certificate.", TEXT, "", shown="none"
    )
    tls_ca: str | None = _setting(
        "PEM file with the CA of the reducers' certificates.", TEXT, "", shown="none"
    )


@dataclass(frozen=True)
class Given(JobSettings):
    """What ``connect`` was given."""

    rank: int | None = _setting("This worker's number, from 0.", shown="the launcher's rank")
    world_size: int | None = _setting("Number of workers.", shown="the launcher's world size")
    run_id: str | None = _setting(
        "Id of this run of the job, equal on all ranks.", shown="rank 0 makes one"
    )
    step_timeout: float | None = _setting(
        "Seconds until a call that waits for a result gives up.", SECONDS, shown="300"
    )


def settings() -> Iterator[tuple[str, Setting]]:
    """Every row of the table, with its name."""
    for each in fields(Given):
        setting: Setting = each.metadata["setting"]
        if setting.variable == _BY_NAME:
            setting = replace(setting, variable=f"REDUCER_{each.name.upper()}")
        yield each.name, setting


def variable_of(name: str) -> str:
    """The environment variable of a setting; "" if there is none."""
    return _TABLE[name].variable


def find_value(
    name: str,
    given: Any = None,
    environ: Mapping[str, str] | None = None,
    default: Any = None,
) -> Any:
    """The value of a setting: the given one, else the variable's, else the default.

    Raises ValueError, which names the argument or the variable, and the bad value.
    """
    setting = _TABLE[name]
    assert setting.kind is not None
    source, value = name, given
    if given is None:
        source = setting.variable
        value = (os.environ if environ is None else environ).get(source, "").strip()
        if not value:
            return setting.default if default is None else default
    try:
        return setting.kind.check(setting.kind.parse(value) if given is None else given)
    except ValueError as error:
        raise ValueError(f"{source}={value!r}: {error}") from None


_TABLE = dict(settings())
