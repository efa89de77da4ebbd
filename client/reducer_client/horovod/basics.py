"""``init``, ``shutdown``, and what a process knows about itself in between."""

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
    """Join the job on its reducers; nothing if that is done already.

    Rank and size come from the launcher (``HOROVOD_RANK``, torchrun, Open MPI, ...), reducers and
    job from ``REDUCER_ADDRS`` and ``REDUCER_JOB`` or the cluster; see ``reducer_client.connect``,
    whose errors it raises. Without a launcher and without reducers it is rank 0 of 1.

    Args:
        comm: None. Some of the ranks are a process set.
        process_sets: sets to make usable, the same ones on all ranks; or ``"dynamic"``, which is
            none: ``add_process_set`` works always.
    """
    if comm:
        raise NotImplementedError(
            f"init(comm={comm!r}): expected None; for some of the ranks pass process_sets="
            "[ProcessSet(ranks)], and that set to each call"
        )
    made = context.open_context()
    if made is None:
        return
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(made.size))
    atexit.register(shutdown)
    try:
        for process_set in [] if isinstance(process_sets, str) else process_sets or []:
            add_process_set(process_set)
    except BaseException:
        shutdown()
        raise


def shutdown() -> None:
    """Leave the job; ``init`` may follow. What is pending fails, and process sets are unusable."""
    atexit.unregister(shutdown)
    context.close_context()
    forget_process_sets()
    global_process_set.process_set_id = None
    global_process_set.ranks = []


def is_initialized() -> bool:
    """Whether ``init`` was called, and ``shutdown`` was not, here or in the parent of a fork."""
    return context.is_known()


def rank() -> int:
    """This process's number, from 0."""
    return context.known().rank


def size() -> int:
    """The number of processes."""
    return context.known().size


def local_rank() -> int:
    """This process's number on its host: what the launcher says, else by the ranks' order."""
    return context.known().topology.local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return context.known().topology.local_size


def cross_rank() -> int:
    """This process's number among those of the same local rank on all hosts."""
    return context.known().topology.cross_rank


def cross_size() -> int:
    """The number of processes of the same local rank on all hosts."""
    return context.known().topology.cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes."""
    return context.known().topology.homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a timeline from now on, on rank 0; an open one is ended. See ``horovod.timeline``."""
    if context.current().rank == 0:
        context.current().timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline; the file is complete afterwards."""
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
    """False: ranks meet at the reducers."""
    return False


def gloo_built() -> bool:
    """False: ranks meet at the reducers."""
    return False


def nccl_built() -> int:
    """0: tensors of GPUs go through host memory."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False: tensors of GPUs go through host memory."""
    return False


def rocm_built() -> bool:
    """False: tensors of GPUs go through host memory."""
    return False
