"""The rule: the order of the sources for each value."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from reducer.cluster.addresses import (
    normalize_address,
    refuse_duplicates,
    split_address,
    split_list,
)
from reducer.cluster.cluster_spec import Task, descriptions
from reducer.cluster.kubernetes import find_pods
from reducer.cluster.launchers import (
    ELASTIC_RUN,
    find_elastic_run,
    find_in_launchers,
    find_restarts,
    find_slurm_master,
    find_slurm_step,
    find_slurm_tasks_here,
)
from reducer.cluster.variables import (
    ARGUMENT,
    ClusterError,
    Environment,
    Found,
    find_integer,
    find_text,
)
from reducer.wire.codes import MAX_WORLD_SIZE

# The default name of a job whose cluster has reducers of its own: it cannot meet another job there.
OWN_CLUSTER_JOB = "training"


@dataclass(frozen=True)
class Cluster:
    """Everything found in the environment; None for a value that no variable gives.

    ``master_addr`` and ``master_port`` are the rendezvous of torch.distributed on rank 0's host.
    """

    task: Found[Task] | None
    addresses: Found[tuple[str, ...]] | None
    job: Found[str] | None
    run_id: Found[str] | None
    epoch: Found[int] | None
    rank: Found[int] | None
    world_size: Found[int] | None
    local_rank: Found[int] | None
    local_world_size: Found[int] | None
    master_addr: Found[str] | None
    master_port: Found[int] | None


def discover(env: Environment) -> Cluster:
    """Find every value. Raises ClusterError for the first value that cannot be used."""
    addresses = find_addresses(env)
    rank, world_size = find_ranks(env)
    local_rank, local_world_size = find_local_ranks(env)
    master_addr, master_port = find_master(env)
    return Cluster(
        task=find_task(env),
        addresses=addresses,
        job=find_job(env, None, addresses),
        run_id=find_run_id(env),
        epoch=find_restarts(env),
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        master_addr=master_addr,
        master_port=master_port,
    )


def find_addresses(
    env: Environment, given: str | Sequence[str] | None = None
) -> Found[tuple[str, ...]] | None:
    """The addresses of the reducers.

    A source without reducers is skipped. `given` takes precedence even if it is empty: the result
    is then None.
    """
    if given is not None:
        parts = split_list(given) if isinstance(given, str) else list(given)
        return _listed(parts, ARGUMENT) if parts else None
    listed = find_text(env, "REDUCER_ADDRS")
    if listed is not None:
        return _listed(split_list(listed.value), listed.source)
    for description in descriptions(env):
        reducers = description.reducers()
        if reducers:
            return Found(reducers, description.variable)
    return find_pods(env)


def _listed(parts: Sequence[str], source: str) -> Found[tuple[str, ...]]:
    where = "addresses" if source == ARGUMENT else source
    if not parts:
        raise ClusterError(f"{where}: expected host:port,host:port, got no address")
    try:
        addresses = tuple(map(normalize_address, parts))
    except ClusterError as error:
        raise ClusterError(f"{where}: {error}") from None
    refuse_duplicates(addresses, where)
    return Found(addresses, source)


def find_ranks(
    env: Environment, rank: int | None = None, world_size: int | None = None
) -> tuple[Found[int] | None, Found[int] | None]:
    """Rank and world size. Raises ClusterError if they do not fit together."""
    found_rank, by_rank = _find_number(env, "rank", rank)
    found_size, by_size = _find_number(env, "world_size", world_size)
    if found_rank is None or found_size is None:
        return found_rank, found_size
    if by_rank and by_size and by_rank != by_size:
        raise ClusterError(
            f"{found_rank.source} and {found_size.source} are of two launchers, {by_rank} and "
            f"{by_size}: expected rank and world size of one; set REDUCER_RANK and "
            "REDUCER_WORLD_SIZE to choose"
        )
    sources = f"({found_rank.source}, {found_size.source})"
    n = found_size.value
    if not 1 <= n <= MAX_WORLD_SIZE:
        raise ClusterError(f"world_size {n}: expected 1 to {MAX_WORLD_SIZE} {sources}")
    if not 0 <= found_rank.value < n:
        raise ClusterError(
            f"rank {found_rank.value}: expected 0 to {n - 1} in a world of {n} {sources}"
        )
    return found_rank, found_size


def _find_number(
    env: Environment, what: str, given: int | None
) -> tuple[Found[int] | None, str | None]:
    """``rank`` or ``world_size``, and the launcher that set it; None if the user set it."""
    if given is not None:
        return Found(int(given), ARGUMENT), None
    of_launcher = find_in_launchers(env, what)
    if of_launcher is not None:
        found, launcher = of_launcher
        return found, None if launcher == "REDUCER_*" else launcher
    for description in descriptions(env):
        if what == "world_size":
            value: int | None = len(description.workers()) or None
        else:
            task = description.task()
            value = None if task is None else task.rank
        if value is not None:
            return Found(value, description.variable), description.variable
    return None, None


def find_local_ranks(env: Environment) -> tuple[Found[int] | None, Found[int] | None]:
    """The number of this rank on its host, and the number of ranks on the host."""
    of_launcher = find_in_launchers(env, "local_rank")
    rank = of_launcher[0] if of_launcher else _one_process_for_each_replica(env, 0)
    of_launcher = find_in_launchers(env, "local_world_size")
    if of_launcher:
        return rank, of_launcher[0]
    return rank, find_slurm_tasks_here(env) or _one_process_for_each_replica(env, 1)


def _one_process_for_each_replica(env: Environment, value: int) -> Found[int] | None:
    """``value`` if each replica runs one process, which means that no launcher sets the rank."""
    of_launcher = find_in_launchers(env, "rank")
    task = None if of_launcher else find_task(env)
    return None if task is None or task.value.rank is None else Found(value, task.source)


def find_task(env: Environment) -> Found[Task] | None:
    """The task of this replica from CLUSTER_SPEC or TF_CONFIG."""
    for description in descriptions(env):
        task = description.task()
        if task is not None:
            return Found(task, description.variable)
    return None


def find_job(
    env: Environment, given: str | None, addresses: Found[tuple[str, ...]] | None
) -> Found[str] | None:
    """The job's name.

    CLUSTER_SPEC and TF_CONFIG give a name only if they also list the reducers: reducers outside the
    cluster may have other jobs, which must not have the same name.
    """
    if given is not None:
        return Found(given, ARGUMENT) if given else None
    found = find_text(env, "REDUCER_JOB") or find_elastic_run(env) or find_slurm_step(env)
    if found is not None:
        return found
    for description in descriptions(env):
        if addresses is not None and addresses.value == description.reducers():
            trial = description.trial()
            name = f"{OWN_CLUSTER_JOB}-trial-{trial}" if trial else OWN_CLUSTER_JOB
            return Found(name, description.variable)
    return None


def is_standalone(job: Found[str]) -> bool:
    """Whether the name is the random id that ``torchrun --standalone`` gives a job."""
    if job.source != ELASTIC_RUN:
        return False
    try:
        uuid.UUID(job.value)
    except ValueError:
        return False
    return True


def find_master(env: Environment) -> tuple[Found[str] | None, Found[int] | None]:
    """Host and port of the rendezvous of torch.distributed, on rank 0's machine."""
    host, port = find_text(env, "MASTER_ADDR"), find_integer(env, "MASTER_PORT")
    found = None if host and port else _find_other_master(env)
    return host or (found[0] if found else None), port or (found[1] if found else None)


def find_run_id(env: Environment, given: str | None = None) -> Found[str] | None:
    """The run id: equal on all ranks and new after a restart; None if rank 0 has to make one."""
    if given:
        return Found(given, ARGUMENT)
    elastic = find_elastic_run(env)
    if env.get("REDUCER_RUN_ID", "") or elastic is None:
        return find_text(env, "REDUCER_RUN_ID")
    return Found(f"{elastic.value}.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", elastic.source)


def _find_other_master(env: Environment) -> tuple[Found[str], Found[int]] | None:
    if find_text(env, "SLURM_PROCID"):
        return find_slurm_master(env)
    for description in descriptions(env):
        workers = description.workers()
        if workers:
            host, port = split_address(workers[0])
            return Found(host.strip("[]"), description.variable), Found(port, description.variable)
    return None
