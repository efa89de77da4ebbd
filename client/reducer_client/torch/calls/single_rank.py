"""A group of one rank, whose collectives need no reducer."""

from __future__ import annotations

from typing import Any

import numpy as np

from reducer_client.arrays import Array
from reducer_client.torch.calls.works import OnDone


class Done:
    """The handle of a call that was complete at once."""

    done = True

    def wait(self, timeout: float | None = None) -> None:
        return

    def exception(self) -> None:
        return


class SingleRankGroup:
    """The part of ``reducer_client.Group`` that process groups use, for a world size of 1."""

    reducers = 1
    step_timeout = None

    def all_reduce(self, array: Array, op: str, *, out: Array, **options: Any) -> Done:
        return _copy(array, out, **options)

    def broadcast(self, array: Array, root: int, *, out: Array, **options: Any) -> Done:
        return _copy(array, out, **options)

    def all_gather(self, array: Array, *, out: Array, **options: Any) -> Done:
        return _copy(array, out, **options)

    def reduce_scatter(self, array: Array, op: str, *, out: Array, **options: Any) -> Done:
        return _copy(array, out, **options)

    def barrier(self, timeout: float | None = None, key: str | None = None) -> None:
        return

    def close(self) -> None:
        return

    def abort(self, timed_out: str = "") -> None:
        return


def _copy(array: Array, out: Array, *, on_done: OnDone | None = None, **options: Any) -> Done:
    if out is not array:
        np.copyto(out.reshape(-1), array.reshape(-1))
    done = Done()
    if on_done is not None:
        on_done(done)
    return done
