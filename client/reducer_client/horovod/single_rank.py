"""A group of one rank inside this process, for programs that run without launcher and reducers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reducer_client.arrays import Array
from reducer_client.dtypes import Op


@dataclass(frozen=True)
class SingleRankWork:
    """A work that is done at once."""

    result: Array

    def wait(self, timeout: float | None = None) -> Array:
        return self.result


class SingleRankGroup:
    """The part of ``reducer_client.Group`` that the Horovod layer uses, for one rank."""

    rank = 0
    world_size = 1
    run_id = "local"
    job = "local"

    def all_reduce(
        self,
        array: Array,
        op: Op = "sum",
        key: str | None = None,
        out: Array | None = None,
        *,
        dtype: str | None = None,
    ) -> SingleRankWork:
        return _copied(array, out)

    reduce_scatter = all_reduce

    def broadcast(
        self, array: Array, root: int = 0, key: str | None = None, out: Array | None = None
    ) -> SingleRankWork:
        return _copied(array, out)

    def all_gather(
        self, array: Array, key: str | None = None, out: Array | None = None
    ) -> SingleRankWork:
        return _copied(array[np.newaxis], out)

    def stats(self, timeout: float = 5.0) -> dict[str, Any]:
        return {"bytes_sent": 0, "bytes_received": 0, "reducers": []}

    def close(self, timeout: float = 10.0) -> None: ...

    def abort(self) -> None: ...


def _copied(array: Array, out: Array | None) -> SingleRankWork:
    if out is None:
        return SingleRankWork(array.copy())
    np.copyto(out, array)
    return SingleRankWork(out)
