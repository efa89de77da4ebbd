"""Resumes a training from the last commit after the loss of a worker.

The workers of a job are fixed: their number never changes, and a rank that was lost must be started
again by the launcher. The others wait for it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from reducer_client.errors import ReducerError
from reducer_client.horovod import config
from reducer_client.horovod.basics import init, shutdown
from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.horovod.process_sets import ProcessSet, usable_process_sets
from reducer_client.horovod.torch.sampler import ElasticSampler
from reducer_client.horovod.torch.state import ObjectState, State, TorchState

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]

# Reasons of the loss of a rank, and of every end of Horovod that is no mistake of the program.
_LOSSES = ("lost", "left", "failed")
_ENDS = (*_LOSSES, "closed", "timeout", "unreachable")

T = TypeVar("T")
_logger = logging.getLogger("reducer_client")


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """Raise this on all ranks to make them rejoin the job and call the function again."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the workers must rejoin the job")
        self.skip_sync = skip_sync


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorate ``func(state, ...)``, which trains: it is called again after each loss of a worker.

    Whenever ``func`` begins, all ranks have the state of the rank with the most commits: a rank
    that was started again, rank 0 included, takes over what the others have. A rank on which
    ``func`` has returned takes no further part.

    The process sets that exist when the decorated function is called are added again before each
    call of ``func``. Process sets that ``func`` adds are not, because a rank that was started again
    does not know them.

    Raises HorovodInternalError if not all ranks are back within ``HOROVOD_ELASTIC_TIMEOUT`` (600)
    seconds. Every error of ``func`` that is not the loss of a rank is raised unchanged.
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
                skip_sync = interrupt.skip_sync
            has_met_again = True

    return wrapper


def _meet_again(process_sets: Sequence[ProcessSet]) -> None:
    """Join again until all ranks have joined.

    If a rank is lost meanwhile, wait until the launcher has started that rank again.
    """
    deadline = time.monotonic() + config.resolve().elastic_timeout
    while True:
        shutdown()
        try:
            return init(process_sets=process_sets)
        except ReducerError as error:
            if error.reason in _LOSSES and time.monotonic() < deadline:
                _logger.warning("joining once more: %s", error)
                continue
            raise HorovodInternalError(
                f"the workers did not all rejoin: {error}. A job has a fixed set of workers: have "
                "the launcher start a lost rank again, with its old rank and world size",
                rank=error.rank,
                reason=error.reason,
            ) from error
