"""``init``, ``shutdown``, and the functions that tell a process its place in the job."""

from __future__ import annotations

import atexit
from collections.abc import Sequence

from reducer_client.horovod import context
from reducer_client.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    forget_process_sets,
    global_process_set,
)


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None
) -> None:
    """Join the job on its reducers. A second call changes nothing.

    Rank and size come from the launcher (``HOROVOD_RANK``, torchrun, Open MPI, ...). Reducers and
    job come from ``REDUCER_ADDRS`` and ``REDUCER_JOB`` or from the cluster, as for
    ``reducer_client.connect``. Without launcher and reducers this process is rank 0 of 1.

    If ``REDUCER_WORKERS`` is set, the workers come and go, and the registry gives rank and size:
    the first ``REDUCER_WORKERS`` processes start the job, and a later process waits here until the
    others take it in (``elastic.State.check_host_updates``).

    Args:
        comm: must be None. Use process sets for some of the ranks.
        process_sets: process sets to add, the same on all ranks. ``"dynamic"`` adds none;
            ``add_process_set`` is always available.

    Raises:
        NotImplementedError: ``comm`` is not None.
        ValueError, ReducerError: as ``reducer_client.connect`` and ``add_process_set``.
    """
    if comm:
        raise NotImplementedError(
            f"init(comm={comm!r}): expected None; to use some of the ranks, pass process_sets="
            "[ProcessSet(ranks)] to init and the process set to each call"
        )
    made = context.open_context()
    if made is None:
        return
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(made.size))
    atexit.unregister(shutdown)
    atexit.register(shutdown)
    try:
        for process_set in [] if isinstance(process_sets, str) else process_sets or []:
            add_process_set(process_set)
    except BaseException:
        end_run()
        raise


def shutdown() -> None:
    """Leave the job. Pending operations fail, and process sets become unusable.

    ``init`` may be called again afterwards.
    """
    atexit.unregister(shutdown)
    end_run()
    context.leave_job()


def end_run() -> None:
    """Leave the run, as ``shutdown`` does, to join the next run of the job with ``init``."""
    context.close_context()
    forget_process_sets()
    global_process_set.process_set_id = None
    global_process_set.ranks = []


def is_initialized() -> bool:
    """Whether this process, or the parent that it was forked from, is between init and shutdown."""
    return context.is_known()


def rank() -> int:
    """This process's rank, from 0."""
    return context.known().rank


def size() -> int:
    """The number of processes."""
    return context.known().size


def local_rank() -> int:
    """This process's rank on its host: the launcher's value, else by the order of the ranks."""
    return context.known().topology.local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return context.known().topology.local_size


def cross_rank() -> int:
    """This process's rank among the processes with the same local rank on all hosts."""
    return context.known().topology.cross_rank


def cross_size() -> int:
    """The number of processes with the same local rank on all hosts."""
    return context.known().topology.cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes."""
    return context.known().topology.homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a new timeline on rank 0 (see ``horovod.timeline``). An open timeline ends.

    Raises OSError if the file cannot be opened.
    """
    if context.current().rank == 0:
        context.current().timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline. Its file is then complete."""
    context.current().timeline.stop()


def mpi_threads_supported() -> bool:
    """False: there is no MPI."""
    return False


def mpi_enabled() -> bool:
    """False: there is no MPI."""
    return False


def mpi_built() -> bool:
    """False: there is no MPI."""
    return False


def gloo_enabled() -> bool:
    """False: the reducers take the place of gloo."""
    return False


def gloo_built() -> bool:
    """False: the reducers take the place of gloo."""
    return False


def nccl_built() -> int:
    """0: GPU tensors go through host memory."""
    return 0


def ddl_built() -> bool:
    """False: there is no DDL."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL."""
    return False


def cuda_built() -> bool:
    """False: GPU tensors go through host memory."""
    return False


def rocm_built() -> bool:
    """False: GPU tensors go through host memory."""
    return False
