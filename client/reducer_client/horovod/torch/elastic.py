"""Resumes a training from the last commit after the loss of a worker.

If ``REDUCER_WORKERS`` is set, the workers come and go: the others go on without a lost one, and
take in new ones. Else the workers of a job are fixed: a rank that was lost must be started again by
the launcher, and the others wait for it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from reducer_client.errors import ReducerError
from reducer_client.horovod import config
from reducer_client.horovod.basics import end_run, init
from reducer_client.horovod.context import find_rendezvous
from reducer_client.horovod.errors import HorovodInternalError, from_reducer_error
from reducer_client.horovod.process_sets import ProcessSet, usable_process_sets
from reducer_client.horovod.rendezvous import LOSSES
from reducer_client.horovod.torch.sampler import ElasticSampler
from reducer_client.horovod.torch.state import (
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TorchState,
)

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]

# Reasons of every end of Horovod that is no mistake of the program.
_ENDS = (*LOSSES, "closed", "timeout", "unreachable")

T = TypeVar("T")
_logger = logging.getLogger("reducer_client")


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorate ``func(state, ...)``, which trains: it is called again after each loss of a worker.

    Whenever ``func`` begins, all ranks have the state of the rank with the most commits: a rank
    that was started again, rank 0 included, takes over what the others have. A rank on which
    ``func`` has returned takes no further part.

    If the workers come and go, the ranks and their number are others after each loss, and after
    each ``HostsUpdatedInterrupt``.

    The process sets that exist when the decorated function is called are added again before each
    call of ``func``. Process sets that ``func`` adds are not, because a rank that was started again
    does not know them.

    Raises HorovodInternalError if not all ranks are back within ``HOROVOD_ELASTIC_TIMEOUT`` (600)
    seconds, or, if the workers come and go, if fewer than ``REDUCER_MIN_WORKERS`` are left. Every
    error of ``func`` that is not the loss of a rank is raised unchanged.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> T:
        process_sets = usable_process_sets()
        skip_sync = has_met_again = False
        while True:
            try:
                if has_met_again:
                    state.on_reset()
                if not skip_sync:
                    state.sync()
                    _take_state()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                if error.reason not in _ENDS:
                    raise  # a mistake of the program, for example, which would be made again
                _logger.warning("going back to the last commit: %s", error)
                _meet_again(process_sets)
                state.restore()  # only now: nothing of the old run can still write to the state
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                _meet_again(process_sets)
                skip_sync = interrupt.skip_sync and _all_have_state()
            has_met_again = True

    return wrapper


def _meet_again(process_sets: Sequence[ProcessSet]) -> None:
    """Join again until all ranks have joined.

    If a rank is lost meanwhile, wait until the launcher has started that rank again.
    """
    deadline = time.monotonic() + config.resolve().elastic_timeout
    while True:
        end_run()
        try:
            return init(process_sets=process_sets)
        except ReducerError as error:
            if error.reason in LOSSES and time.monotonic() < deadline:
                _logger.warning("joining once more: %s", error)
                continue
            if config.is_elastic():
                raise from_reducer_error(error) from error
            raise HorovodInternalError(
                f"the workers did not all rejoin: {error}. A job has a fixed set of workers: have "
                "the launcher start a lost rank again, with its old rank and world size",
                rank=error.rank,
                reason=error.reason,
            ) from error


def _take_state() -> None:
    """Tell the other workers that this one has the job's state now."""
    rendezvous = find_rendezvous()
    if rendezvous is not None:
        rendezvous.take_state()


def _all_have_state() -> bool:
    rendezvous = find_rendezvous()
    return rendezvous is None or rendezvous.all_have_state
