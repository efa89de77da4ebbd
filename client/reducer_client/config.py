"""Settings of a group.

In the client only this file, hosting_config.py and horovod/config.py read the environment.
Precedence: arguments, then ``REDUCER_*``, then the variables of launchers and clusters
(`reducer.cluster`), then the default. The window of a worker is an option of the reducers:
``--credit`` (`reducer.server.serve_options`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast, get_args

from reducer import keyfile
from reducer.cluster import discovery
from reducer.cluster.variables import Found
from reducer.log import Debug, parse_debug
from reducer.wire.codes import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_TABLE_ROWS,
    MAX_JOB_BYTES,
    MAX_RUN_ID_BYTES,
    MAX_WEIGHTED,
    MAX_WEIGHTS,
    MAX_WORLD_SIZE,
)
from reducer.wire.handshake import MAX_KEY_BYTES, MIN_KEY_BYTES, job_key

DEFAULT_STEP_TIMEOUT = 300.0
# Settings in seconds: (name of the variable, default).
_SECONDS = {
    "connect_timeout": ("REDUCER_CONNECT_TIMEOUT", 60.0),
    # A live reducer sends something every heartbeat (0.25 s).
    "silence": ("REDUCER_SILENCE", 1.0),
    # A lane answers the heartbeats of a connection for tables, one each second.
    "lane_silence": ("REDUCER_SILENCE", 5.0),
    # A live worker does so as well, but a false alarm ends the job, so lanes wait longer.
    "worker_silence": ("REDUCER_WORKER_SILENCE", 5.0),
    # A restarted daemon or a rescheduled pod needs less time than this.
    "reducer_wait": ("REDUCER_WAIT", 30.0),
}
# Rows of (minimum bytes of a round per reducer, bytes of its chunks).
#  - No result travels before the first chunk of each reducer has arrived. This costs the fraction
#    reducers x chunk / round of a round's time, 0.4 % for large rounds with this table.
#  - Small rounds have small chunks, so that they still use all reducers.
#  - Chunks above 256 KiB save no more CPU, and a lane reserves memory for several of the largest
#    chunks per rank.
_CHUNKS_PER_REDUCER = (
    (0, 16 << 10),
    (128 << 10, 32 << 10),
    (1 << 20, 64 << 10),
    (32 << 20, 128 << 10),
    (64 << 20, 256 << 10),
)
CHUNK_ALIGNMENT = 64
MAX_IO_THREADS = 16

OnOverflow = Literal["flag", "error"]
OnNonfinite = Literal["propagate", "error"]
CudaWait = Literal["host", "stream"]
_CUDA_QUEUES = 8  # CUDA's default
Transport = Literal["auto", "tcp"]


@dataclass(frozen=True)
class Settings:
    """The settings of ``connect``, resolved from arguments and environment.

    ``run_id`` is "" on a rank that gets the id from rank 0. Times are in seconds. ``step_timeout``
    is None if the caller gave none.
    """

    addresses: tuple[str, ...]
    job: str
    rank: int
    world_size: int
    run_id: str
    connect_timeout: float
    step_timeout: float | None
    silence: float
    worker_silence: float
    reducer_wait: float
    on_overflow: OnOverflow
    on_nonfinite: OnNonfinite
    chunk_table: tuple[tuple[int, int], ...]
    weights: tuple[int, ...]
    min_reducers: int
    transport: Transport
    congestion: str
    source: str
    digest_every: int
    io_threads: int
    timeline: str
    cuda_wait: CudaWait


def find_dedicated(
    addresses: str | Sequence[str] | None, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The addresses of the dedicated reducers; empty if none are configured."""
    found = discovery.find_addresses(os.environ if environ is None else environ, addresses)
    return () if found is None else found.value


def find_job(addresses: str | Sequence[str] | None, job: str | None) -> str | None:
    """The job's name, given or from the environment; None if nothing names the job."""
    found = discovery.find_job(os.environ, job, discovery.find_addresses(os.environ, addresses))
    return job if found is None else found.value


def require_job(addresses: str | Sequence[str] | None, job: str | None) -> str:
    """The job's name, given or from the environment. Raises ValueError if nothing names it."""
    return _resolve_job(os.environ, job, require_addresses(addresses))


def require_addresses(
    addresses: str | Sequence[str] | None, environ: Mapping[str, str] | None = None
) -> Found[tuple[str, ...]]:
    """The addresses of the reducers and their source. Raises ValueError if there are none."""
    found = discovery.find_addresses(os.environ if environ is None else environ, addresses)
    if found is None:
        raise ValueError(
            "no reducer addresses: give them (connect([...]), or --addresses of a command), or set "
            "REDUCER_ADDRS=host:port,host:port. "
            "CLUSTER_SPEC, TF_CONFIG and REDUCER_SERVICE name none (`reducer env` shows what is "
            "found). Workers can host reducers themselves (hosted=True, REDUCER_HOSTED=1)"
        )
    return found


def resolve(
    addresses: str | Sequence[str] | None = None,
    *,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    run_id: str | None = None,
    connect_timeout: float | None = None,
    step_timeout: float | None = None,
    silence: float | None = None,
    worker_silence: float | None = None,
    reducer_wait: float | None = None,
    on_overflow: OnOverflow = "flag",
    on_nonfinite: OnNonfinite = "propagate",
    chunk_table: Sequence[tuple[int, int]] | None = None,
    weights: Sequence[int] | None = None,
    min_reducers: int | None = None,
    transport: Transport | None = None,
    congestion: str | None = None,
    source: str | None = None,
    digest_every: int | None = None,
    io_threads: int | None = None,
    timeline: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve the settings from arguments and environment.

    Raises ValueError, which names the setting and the bad value.
    """
    env = os.environ if environ is None else environ
    ranks = _resolve_ranks(env, rank, world_size)
    if on_overflow not in get_args(OnOverflow):
        raise ValueError(f"on_overflow={on_overflow!r}: expected one of {get_args(OnOverflow)}")
    if on_nonfinite not in get_args(OnNonfinite):
        raise ValueError(f"on_nonfinite={on_nonfinite!r}: expected one of {get_args(OnNonfinite)}")
    found = require_addresses(addresses, env)
    shares = check_weights(weights or (), len(found.value))
    table = default_chunk_table(len(found.value), shares) if chunk_table is None else chunk_table
    return Settings(
        addresses=found.value,
        job=_resolve_job(env, job, found),
        rank=ranks[0],
        world_size=ranks[1],
        run_id=_resolve_run_id(env, run_id, ranks[0]),
        connect_timeout=resolve_seconds("connect_timeout", connect_timeout, env),
        step_timeout=None if step_timeout is None else _positive("step_timeout", step_timeout),
        silence=resolve_seconds("silence", silence, env),
        worker_silence=resolve_seconds("worker_silence", worker_silence, env),
        reducer_wait=resolve_seconds("reducer_wait", reducer_wait, env),
        on_overflow=on_overflow,
        on_nonfinite=on_nonfinite,
        chunk_table=check_chunk_table(table),
        weights=shares,
        min_reducers=_resolve_min_reducers(env, min_reducers, len(found.value)),
        transport=_resolve_transport(env, transport),
        congestion=resolve_congestion(env, congestion),
        source=_resolve_source(env, source),
        digest_every=_resolve_digest_every(env, digest_every),
        io_threads=_resolve_io_threads(env, io_threads),
        timeline=env.get("REDUCER_TIMELINE", "") if timeline is None else os.fspath(timeline),
        cuda_wait=resolve_cuda_wait(env),
    )


def resolve_cuda_wait(environ: Mapping[str, str]) -> CudaWait:
    """Who waits for results on CUDA devices: ``REDUCER_CUDA_WAIT``, else the host.

    With fewer than 8 hardware queues (``CUDA_DEVICE_MAX_CONNECTIONS``) two streams may share one,
    so that a stream that waits for a result could hold up the values that the others wait for. Then
    the host waits in any case.

    Raises ValueError, which names the bad value.
    """
    text = environ.get("REDUCER_CUDA_WAIT", "") or "host"
    if text not in get_args(CudaWait):
        raise ValueError(f"REDUCER_CUDA_WAIT={text!r}: expected one of {get_args(CudaWait)}")
    queues = environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "") or "8"
    is_few = not queues.isdecimal() or int(queues) < _CUDA_QUEUES
    return "host" if is_few else cast("CudaWait", text)


def resolve_seconds(
    name: str, given: float | None = None, environ: Mapping[str, str] | None = None
) -> float:
    """A setting of `_SECONDS`: the given value, else the variable's value, else the default.

    Raises ValueError, which names the bad value, unless the value is a finite number above 0.
    """
    variable, default = _SECONDS[name]
    if given is not None:
        return _positive(name, given)
    text = (os.environ if environ is None else environ).get(variable, "")
    try:
        return _positive(variable, float(text or default))
    except ValueError:
        raise ValueError(f"{variable}={text!r}: expected seconds above 0") from None


def resolve_key(
    job: str,
    key: bytes | None = None,
    key_file: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> bytes:
    """The job's key for mode psk; b"" means none.

    The key comes from the reducers' key ``key``, else from the file ``key_file``, else from the
    file that ``REDUCER_KEY_FILE`` names. The key is not part of Settings, so that no log line,
    copy or message can contain it.

    Raises ValueError for a bad file or key, and TypeError if ``key`` is not bytes. No error text
    contains a part of the key.
    """
    env = os.environ if environ is None else environ
    if key is not None and key_file is not None:
        raise ValueError("key and key_file: expected one of them, got both")
    if key is not None:
        if not isinstance(key, bytes):
            raise TypeError(f"key: expected bytes, got {type(key).__name__}")
        if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise ValueError(
                f"key: expected {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, got {len(key)}"
            )
        return job_key(key, job)
    path = env.get("REDUCER_KEY_FILE", "") if key_file is None else os.fspath(key_file)
    return keyfile.read_for_job(path, job) if path else b""


def resolve_tls(
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, str, str] | None:
    """The files of mode tls (certificate, private key, CA); None if no file is given.

    Raises ValueError if only some files are given, a file cannot be read, or other users can read
    the private key.
    """
    env = os.environ if environ is None else environ
    given = {"tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca}
    found = {
        name: env.get(f"REDUCER_{name.upper()}", "") if path is None else os.fspath(path)
        for name, path in given.items()
    }
    missing = [name for name, path in found.items() if not path]
    if len(missing) == len(found):
        return None
    if missing:
        raise ValueError(
            f"mode tls needs tls_cert, tls_key and tls_ca (REDUCER_TLS_CERT, _KEY and _CA); "
            f"missing: {', '.join(missing)}"
        )
    for name, path in found.items():
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ValueError(f"{name} {path}: {error.strerror}") from None
    keyfile.check_private(found["tls_key"])
    return found["tls_cert"], found["tls_key"], found["tls_ca"]


def resolve_debug(environ: Mapping[str, str] | None = None) -> tuple[Debug, str] | None:
    """The values of REDUCER_DEBUG and REDUCER_LOG_FORMAT; None if REDUCER_DEBUG is not set.

    Raises ValueError, which names the variable and the bad value.
    """
    env = os.environ if environ is None else environ
    text, form = env.get("REDUCER_DEBUG", ""), env.get("REDUCER_LOG_FORMAT", "") or "text"
    try:
        wanted = parse_debug(text)
    except ValueError as error:
        raise ValueError(f"REDUCER_DEBUG={text!r}: {error}") from None
    if form not in ("text", "json"):
        raise ValueError(f"REDUCER_LOG_FORMAT={form!r}: expected text or json")
    return None if wanted is None else (wanted, form)


def default_chunk_table(reducers: int, weights: Sequence[int] = ()) -> tuple[tuple[int, int], ...]:
    """Rows of (minimum bytes of a round, bytes of its chunks) for this number of reducers.

    If the weights differ, the reducer with the heaviest share decides, as if all shares were equal
    to it.
    """
    alike = sum(weights) // max(weights) if weights else reducers
    return tuple((least * alike, chunk) for least, chunk in _CHUNKS_PER_REDUCER)


def check_weights(weights: Sequence[int], reducers: int) -> tuple[int, ...]:
    """The weights as a tuple; () if all are equal. Raises ValueError for weights that PROTOCOL.md,
    section 6, excludes.
    """
    given = tuple(int(weight) for weight in weights)
    if not given:
        return ()
    if len(given) != reducers:
        raise ValueError(
            f"weights: expected {reducers}, one for each reducer, got {len(given)}: {given}"
        )
    if min(given) < 1:
        raise ValueError(f"weights: expected numbers from 1 on, got {given}")
    if min(given) == max(given):
        return ()
    if reducers > MAX_WEIGHTED or sum(given) > MAX_WEIGHTS:
        raise ValueError(
            f"weights: expected a sum of at most {MAX_WEIGHTS:,} and at most {MAX_WEIGHTED} "
            f"reducers, got a sum of {sum(given):,} for {reducers} reducers"
        )
    return given


def check_chunk_table(rows: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The table as tuples. Raises ValueError for tables that PROTOCOL.md, section 6, excludes."""
    table = tuple((int(least), int(chunk)) for least, chunk in rows)
    if not 1 <= len(table) <= MAX_CHUNK_TABLE_ROWS or table[0][0] != 0:
        raise ValueError(
            f"chunk_table: expected 1 to {MAX_CHUNK_TABLE_ROWS} rows, the first for rounds from "
            f"0 bytes, got {table}"
        )
    if any(later[0] <= earlier[0] for earlier, later in pairwise(table)):
        raise ValueError(f"chunk_table: expected rows with ascending minimum bytes, got {table}")
    for _, chunk in table:
        if not 0 < chunk <= MAX_CHUNK_BYTES or chunk % CHUNK_ALIGNMENT:
            raise ValueError(
                f"chunk_table: chunks of {chunk} bytes; expected a multiple of {CHUNK_ALIGNMENT} "
                f"up to {MAX_CHUNK_BYTES}"
            )
    return table


def find_cluster(environ: Mapping[str, str] | None = None) -> discovery.Cluster:
    """All that the variables of launchers and clusters tell of this process. Raises ValueError."""
    return discovery.discover(os.environ if environ is None else environ)


def find_world_size(
    rank: int | None, world_size: int | None, environ: Mapping[str, str] | None = None
) -> int:
    """The world size. Raises ValueError if rank or world size are not known."""
    return _resolve_ranks(os.environ if environ is None else environ, rank, world_size)[1]


def find_worker(
    worker: int | None, workers: int | None, environ: Mapping[str, str] | None = None
) -> tuple[int, int | None]:
    """The number of this worker of a table, and how many there are, if that is known.

    Raises ValueError if the number is not known or not below MAX_WORLD_SIZE.
    """
    env = os.environ if environ is None else environ
    rank, size = discovery.find_ranks(env, worker, workers)
    if rank is None:
        raise ValueError(
            "no worker number: give one (parameter_server(worker=)), or set REDUCER_RANK, or start "
            "this program with a launcher that sets the rank (`reducer env` shows what is found). "
            "A process that only reads says parameter_server(reader=True)"
        )
    if not 0 <= rank.value < MAX_WORLD_SIZE:
        raise ValueError(
            f"worker {rank.value} (from {rank.source}): expected 0 to {MAX_WORLD_SIZE - 1}"
        )
    return rank.value, None if size is None else size.value


def resolve_run_id(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The run id, given or from the environment; "" if there is none."""
    found = discovery.find_run_id(os.environ if environ is None else environ, given)
    return _bounded("run_id", "" if found is None else found.value, MAX_RUN_ID_BYTES)


def resolve_registry(
    given: str | None, addresses: tuple[str, ...], environ: Mapping[str, str] | None = None
) -> str:
    """The address of the registry: by default the first reducer."""
    env = os.environ if environ is None else environ
    return given or env.get("REDUCER_REGISTRY", "") or addresses[0]


def find_local_ranks(environ: Mapping[str, str] | None = None) -> tuple[int | None, int | None]:
    """(local rank, number of ranks on this host) from the launcher's variables, else None."""
    local_rank, size = discovery.find_local_ranks(os.environ if environ is None else environ)
    return (
        None if local_rank is None else local_rank.value,
        None if size is None else size.value,
    )


def resolve_run(
    addresses: str | Sequence[str] | None,
    job: str | None,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """(job, run id) that rank 0 of a process group chooses for all ranks.

    A value that neither the argument nor the environment gives is random.
    """
    env = os.environ if environ is None else environ
    token = secrets.token_hex(8)
    found_job = discovery.find_job(env, job, discovery.find_addresses(env, addresses))
    found_run = discovery.find_run_id(env)
    return (
        f"torch-{token}" if found_job is None else found_job.value,
        token if found_run is None else found_run.value,
    )


def gloo_interfaces(environ: Mapping[str, str] | None = None) -> list[str]:
    """The interfaces in torch's variable GLOO_SOCKET_IFNAME; empty if gloo is to choose."""
    env = os.environ if environ is None else environ
    return [name for name in env.get("GLOO_SOCKET_IFNAME", "").split(",") if name]


def keep_gloo_on_loopback() -> None:
    """Make gloo use the loopback interface, for ranks on one machine.

    By default gloo binds to the address to which the host's name resolves.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _resolve_job(
    env: Mapping[str, str], given: str | None, addresses: Found[tuple[str, ...]]
) -> str:
    found = discovery.find_job(env, given, addresses)
    if found is None:
        raise ValueError(
            "no job name: pass connect(job=...) or set REDUCER_JOB, to the same name on all ranks"
        )
    return _bounded("job", found.value, MAX_JOB_BYTES)


def _resolve_ranks(
    env: Mapping[str, str], rank: int | None, world_size: int | None
) -> tuple[int, int]:
    found_rank, found_size = discovery.find_ranks(env, rank, world_size)
    if found_rank is None:
        task = discovery.find_task(env)
        why = f" ({task.source}: this replica is: {task.value.role})" if task else ""
        raise ValueError(
            f"no rank{why}: give one (connect(rank=), or --rank of a command), or set "
            "REDUCER_RANK, or start this program with a launcher that sets the rank (`reducer env` "
            "shows what is found)"
        )
    if found_size is None:
        raise ValueError(
            f"no world_size, only a rank (from {found_rank.source}): give the world size, too, or "
            "set REDUCER_WORLD_SIZE"
        )
    return found_rank.value, found_size.value


def _resolve_run_id(env: Mapping[str, str], given: str | None, rank: int) -> str:
    found = resolve_run_id(given, env)
    return secrets.token_hex(8) if not found and rank == 0 else found


def _resolve_transport(env: Mapping[str, str], given: Transport | None) -> Transport:
    found = given if given is not None else env.get("REDUCER_TRANSPORT", "") or "auto"
    for choice in get_args(Transport):
        if found == choice:
            return cast(Transport, choice)
    source = "transport" if given is not None else "REDUCER_TRANSPORT"
    raise ValueError(f"{source}={found!r}: expected one of {get_args(Transport)}")


def resolve_congestion(env: Mapping[str, str], given: str | None) -> str:
    found = given if given is not None else env.get("REDUCER_CONGESTION", "")
    source = "congestion" if given is not None else "REDUCER_CONGESTION"
    if found:
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, found.encode())
            except OSError as error:
                raise ValueError(
                    f"{source}={found!r}: {error.strerror}; this kernel has "
                    f"{_kernel_setting('tcp_available_congestion_control')}; without privileges it "
                    f"allows {_kernel_setting('tcp_allowed_congestion_control')}"
                ) from None
    return found


def _resolve_source(env: Mapping[str, str], given: str | None) -> str:
    """The source setting, checked: an address of this machine or the name of an interface.

    A name stays a name, because the address of an interface may change.
    """
    found = given if given is not None else env.get("REDUCER_SOURCE", "")
    text = found.strip().removeprefix("[").removesuffix("]")
    interfaces = [name for _, name in socket.if_nameindex()]
    if not text or text in interfaces:
        return text
    where = "source" if given is not None else "REDUCER_SOURCE"
    try:
        (family, kind, *_, address), *_ = socket.getaddrinfo(
            text, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except OSError:
        raise ValueError(
            f"{where}={found!r}: expected an address of this machine, or one of its interfaces "
            f"{', '.join(interfaces)}"
        ) from None
    with socket.socket(family, kind) as probe:
        try:
            probe.bind(address)
        except OSError as error:
            raise ValueError(
                f"{where}={found!r}: expected an address of this machine, or one of its interfaces "
                f"{', '.join(interfaces)}, got an error: {error.strerror}"
            ) from None
    return text


def _resolve_digest_every(env: Mapping[str, str], given: int | None) -> int:
    rounds = _resolve_integer(env, "digest_every", given)
    if not 0 <= rounds < 1 << 32:
        raise ValueError(f"digest_every={rounds}: expected 0 (never) to 2^32 - 1 rounds")
    return rounds


def _resolve_io_threads(env: Mapping[str, str], given: int | None) -> int:
    threads = _resolve_integer(env, "io_threads", given)
    if not 0 <= threads <= MAX_IO_THREADS:
        raise ValueError(
            f"io_threads={threads}: expected 1 to {MAX_IO_THREADS}, or 0 for the default"
        )
    return threads


def _resolve_min_reducers(env: Mapping[str, str], given: int | None, reducers: int) -> int:
    least = _resolve_integer(env, "min_reducers", given) or 1
    if not 1 <= least <= reducers:
        raise ValueError(
            f"min_reducers={least}: expected 1 to {reducers}, the number of the reducers"
        )
    return least


def _resolve_integer(env: Mapping[str, str], name: str, given: int | None) -> int:
    variable = f"REDUCER_{name.upper()}"
    text = env.get(variable, "") or "0"
    try:
        return int(text if given is None else given)
    except ValueError:
        got = f"{variable}={text!r}" if given is None else f"{name}={given!r}"
        raise ValueError(f"{got}: expected an integer") from None


def _kernel_setting(name: str) -> str:
    return Path("/proc/sys/net/ipv4", name).read_text(encoding="ascii").strip()


def _bounded(name: str, text: str, limit: int) -> str:
    size = len(text.encode())
    if size > limit:
        raise ValueError(f"{name}: expected at most {limit} bytes, got {size} ({text[:40]!r}...)")
    return text


def _positive(name: str, seconds: float) -> float:
    if not 0 < float(seconds) < float("inf"):
        raise ValueError(f"{name}={seconds!r}: expected seconds above 0")
    return float(seconds)
