"""All ranks of a job in this process: real sockets and engines, driven from one thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np

import reducer_client
from reducer_client import Group

Array = np.ndarray[Any, np.dtype[Any]]
_SPARE = 1021  # number of turns before values repeat


class Values:
    """The contributions of each rank in each turn, and their sum in rank order by NumPy."""

    def __init__(self, seed: int, world: int, count: int) -> None:
        self._count = count
        self._pools = [
            np.random.default_rng((seed, rank)).standard_normal(count + _SPARE, dtype=np.float32)
            for rank in range(world)
        ]

    def of(self, rank: int, turn: int) -> Array:
        start = turn % _SPARE
        return self._pools[rank][start : start + self._count]

    def total(self, turn: int) -> Array:
        total = self.of(0, turn).copy()
        for rank in range(1, len(self._pools)):
            total += self.of(rank, turn)
        return total


class Groups:
    """The joined groups of a job. The context manager closes them, or aborts them on an error."""

    def __init__(self, world: int, addresses: Sequence[str], job: str, **options: Any) -> None:
        options = {"connect_timeout": 60, "transport": "tcp", **options}

        def join(rank: int) -> Group:
            return reducer_client.connect(
                list(addresses), job=job, rank=rank, world_size=world, **options
            )

        with ThreadPoolExecutor(world) as pool:
            self.ranks = [*pool.map(join, range(world))]

    def turn(self, values: Values, turn: int, key: str = "k", timeout: float = 60.0) -> None:
        """One all-reduce by all ranks; AssertionError unless every rank gets the right bits."""
        works = [
            group.all_reduce(values.of(rank, turn), key=key)
            for rank, group in enumerate(self.ranks)
        ]
        expected = values.total(turn).tobytes()
        for rank, work in enumerate(works):
            got = work.wait(timeout)
            assert got.tobytes() == expected, f"turn {turn}: rank {rank} got a wrong sum"

    def __enter__(self) -> Groups:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            ended = [pool.submit(group.__exit__, kind, error, trace) for group in self.ranks]
        for future in ended:
            if error is None:
                future.result()
