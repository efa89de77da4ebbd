"""A group of one rank inside this process, for programs that run without launcher and reducers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reducer_client.arrays import Array


@dataclass(frozen=True)
class SingleRankWork:
    """A work that was done at once."""

    result: Any = None
    done = True

    def wait(self, timeout: float | None = None) -> Any:
        return self.result

    def exception(self) -> None:
        return


class SingleRankGroup:
    """The part of ``reducer_client.Group`` that Horovod and process groups use, for one rank."""

    rank = 0
    world_size = 1
    run_id = "local"
    job = "local"
    reducers = 1
    step_timeout = None

    def all_reduce(self, array: Array, op: str, **options: Any) -> SingleRankWork:
        return _copied(array, **options)

    reduce_scatter = all_reduce

    def broadcast(self, array: Array, root: int, **options: Any) -> SingleRankWork:
        return _copied(array, **options)

    def all_gather(self, array: Array, **options: Any) -> SingleRankWork:
        return _copied(array[np.newaxis], **options)

    def barrier(self, timeout: float | None = None, key: str | None = None) -> None: ...

    def stats(self, timeout: float = 5.0) -> dict[str, Any]:
        return {"bytes_sent": 0, "bytes_received": 0, "reducers": []}

    def close(self, timeout: float = 10.0) -> None: ...

    def abort(self, timed_out: str = "") -> None: ...


def _copied(
    array: Array,
    *,
    out: Array | None = None,
    on_done: Callable[[Any], None] | None = None,
    **options: Any,
) -> SingleRankWork:
    if out is None:
        out = array.copy()
    elif out is not array:
        np.copyto(out, array)
    work = SingleRankWork(out)
    if on_done is not None:
        on_done(work)
    return work
