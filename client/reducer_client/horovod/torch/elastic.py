"""Trainings that go on after a worker was lost, from the last commit.

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

# Why a rank is not there any more, and what else ends Horovod without a mistake of the program.
_LOSSES = ("lost", "left", "failed")
_ENDS = (*_LOSSES, "closed", "timeout", "unreachable")

T = TypeVar("T")
_logger = logging.getLogger("reducer_client")


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """Raised by a program on all ranks at once: leave, meet again, and call the function again."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the workers are to meet again")
        self.skip_sync = skip_sync


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorate ``func(state, ...)``, which trains: it is called again after each loss of a worker.

    Whenever ``func`` begins, all ranks have the state of the rank with the most commits: a rank
    that was started again, rank 0 included, takes over what the others have. A rank on which
    ``func`` has returned takes no further part.

    The process sets that are usable when this is called are made anew, before ``func`` begins, and
    others not: so has a rank that was started again.

    Raises HorovodInternalError if not all ranks are back within ``HOROVOD_ELASTIC_TIMEOUT`` (600)
    seconds, or for what is no loss of a rank; and whatever else ``func`` raises.
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
                    raise  # such as a mistake of the program, that would come again
                _logger.warning("going back to the last commit: %s", error)
                _meet_again(process_sets)
                state.restore()  # when nothing of the old run can write to the state any more
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                _meet_again(process_sets)
                skip_sync = interrupt.skip_sync
            has_met_again = True

    return wrapper


def _meet_again(process_sets: Sequence[ProcessSet]) -> None:
    """Returns when all ranks are there; one that is lost meanwhile is waited for, too."""
    deadline = time.monotonic() + config.resolve().elastic_timeout
    while True:
        shutdown()
        try:
            return init(process_sets=process_sets)
        except ReducerError as error:
            if error.reason in _LOSSES and time.monotonic() < deadline:
                _logger.warning("meeting once more: %s", error)
                continue
            raise HorovodInternalError(
                f"the workers have not met again: {error}. A job has a fixed set of workers: let "
                "the launcher start a lost rank again, with its old rank and world size, and in "
                "time",
                rank=error.rank,
                reason=error.reason,
            ) from error
