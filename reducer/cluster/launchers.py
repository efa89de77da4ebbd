"""The variables by which launchers tell each process its rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reducer.cluster.variables import ClusterError, Environment, Found, find_integer, find_text

ELASTIC_RUN = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True)
class Launcher:
    """The variables of a launcher for each value; the first one that is set counts."""

    name: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_world_size: tuple[str, ...] = ()


# In the order of the rule. SLURM_NTASKS counts the tasks of the whole job if srun made no step.
LAUNCHERS = (
    Launcher("REDUCER_*", ("REDUCER_RANK",), ("REDUCER_WORLD_SIZE",)),
    Launcher("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    Launcher(
        "Horovod",
        ("HOROVOD_RANK",),
        ("HOROVOD_SIZE",),
        ("HOROVOD_LOCAL_RANK",),
        ("HOROVOD_LOCAL_SIZE",),
    ),
    Launcher(
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher(
        "Slurm", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",)
    ),
)


def find_in_launchers(env: Environment, what: str) -> tuple[Found[int], str] | None:
    """``rank``, ``world_size``, ``local_rank`` or ``local_world_size``, and its launcher's name."""
    for launcher in LAUNCHERS:
        found = find_integer(env, *getattr(launcher, what))
        if found is not None:
            return found, launcher.name
    return None


def variables(what: str) -> str:
    """The names of the variables for one value, as text."""
    return ", ".join(name for launcher in LAUNCHERS for name in getattr(launcher, what))


def find_elastic_run(env: Environment) -> Found[str] | None:
    """torchrun's name of this run.

    None without --rdzv-id and --standalone: torchrun then says "none".
    """
    found = find_text(env, ELASTIC_RUN)
    return None if found is None or found.value == "none" else found


def find_restarts(env: Environment) -> Found[int] | None:
    return find_integer(env, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def find_slurm_step(env: Environment) -> Found[str] | None:
    """A name of the job step: equal on all tasks of the step, and unique in the cluster."""
    job = find_text(env, "SLURM_JOB_ID")
    if job is None:
        return None
    step = env.get("SLURM_STEP_ID", "")
    return Found(f"slurm-{job.value}" + (f".{step}" if step else ""), job.source)


def find_slurm_tasks_here(env: Environment) -> Found[int] | None:
    """The number of tasks on this node. ``8(x3),4`` means 8 on each of three nodes, then 4."""
    counts = find_text(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    node = find_integer(env, "SLURM_NODEID")
    if counts is None or node is None:
        return None
    tasks = []
    for part in counts.value.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ClusterError(f"{counts.source}={counts.value!r}: expected a list like 8(x3),4")
        tasks += [int(match[1])] * int(match[2] or 1)
    if not 0 <= node.value < len(tasks):
        raise ClusterError(
            f"SLURM_NODEID={node.value}: expected less than {len(tasks)}, the nodes in "
            f"{counts.source}={counts.value!r}"
        )
    return Found(tasks[node.value], counts.source)


def find_slurm_master(env: Environment) -> tuple[Found[str], Found[int]] | None:
    """The first host of a list like ``gpu[07-09,12],big1``, and a port for this job."""
    nodes = find_text(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    job = find_integer(env, "SLURM_JOB_ID")
    if nodes is None or job is None:
        return None
    first = re.sub(r"\[([^],-]+)[^]]*\]", r"\1", nodes.value).partition(",")[0]
    # Below Linux's ephemeral ports. Different for most jobs, since jobs may share a node.
    port = 10_000 + job.value % 20_000
    return Found(first, nodes.source), Found(port, job.source)
