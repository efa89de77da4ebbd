"""What the variables of launchers and clusters tell: reducers, job, rank, run.

`reducer.cluster` knows the variables. ``environ`` is the environment by default.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from reducer.cluster import discovery
from reducer.cluster.variables import Found
from reducer.wire.codes import MAX_JOB_BYTES, MAX_RUN_ID_BYTES, MAX_WORLD_SIZE


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


def require_job(
    addresses: str | Sequence[str] | None,
    job: str | None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """The job's name, given or from the environment. Raises ValueError if nothing names it."""
    env = os.environ if environ is None else environ
    found = discovery.find_job(env, job, require_addresses(addresses, env))
    if found is None:
        raise ValueError(
            "no job name: pass connect(job=...) or set REDUCER_JOB, to the same name on all ranks"
        )
    return _bounded("job", found.value, MAX_JOB_BYTES)


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


def find_cluster(environ: Mapping[str, str] | None = None) -> discovery.Cluster:
    """All that the variables of launchers and clusters tell of this process. Raises ValueError."""
    return discovery.discover(os.environ if environ is None else environ)


def find_ranks(
    rank: int | None, world_size: int | None, environ: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Rank and world size. Raises ValueError if one is not known."""
    env = os.environ if environ is None else environ
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


def find_world_size(
    rank: int | None, world_size: int | None, environ: Mapping[str, str] | None = None
) -> int:
    """The world size. Raises ValueError if rank or world size are not known."""
    return find_ranks(rank, world_size, environ)[1]


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

    A job that nobody has named has the name of the script. A run without an id gets a random one.
    """
    env = os.environ if environ is None else environ
    token = secrets.token_hex(8)
    found_job = discovery.find_job(env, job, discovery.find_addresses(env, addresses))
    found_run = discovery.find_run_id(env)
    if found_job is None or discovery.is_standalone(found_job):
        name = _script_name() or f"torch-{token}"
    else:
        name = found_job.value
    return name, token if found_run is None else found_run.value


def _script_name() -> str:
    """The name of the program without its suffix; "" in an interactive session."""
    name = Path(sys.argv[0]).stem if sys.argv else ""
    most = MAX_JOB_BYTES // 4  # a character has up to 4 bytes
    return "" if name in ("", "-c", "-m", "-") else name[:most]


def gloo_interfaces(environ: Mapping[str, str] | None = None) -> list[str]:
    """The interfaces in torch's variable GLOO_SOCKET_IFNAME; empty if gloo is to choose."""
    env = os.environ if environ is None else environ
    return [name for name in env.get("GLOO_SOCKET_IFNAME", "").split(",") if name]


def keep_gloo_on_loopback() -> None:
    """Make gloo use the loopback interface, for ranks on one machine.

    By default gloo binds to the address to which the host's name resolves.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def keep_gloo_on(interface: str) -> None:
    """Make gloo use an interface, whatever the user's environment says."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def publish_job(addresses: Sequence[str], job: str, key_file: str) -> None:
    """Set the variables of a job, for this process and for programs that it starts."""
    os.environ["REDUCER_ADDRS"] = ",".join(addresses)
    os.environ["REDUCER_JOB"] = job
    os.environ["REDUCER_KEY_FILE"] = key_file


def _bounded(name: str, text: str, limit: int) -> str:
    size = len(text.encode())
    if size > limit:
        raise ValueError(f"{name}: expected at most {limit} bytes, got {size} ({text[:40]!r}...)")
    return text
