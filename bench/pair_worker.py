"""One worker of a pair on our side (`bench.pairs`): the counterpart of reference/load.c.

    python -m bench.pair_worker ADDRESS RANK WORKERS BYTES CHUNK_BYTES ROUNDS IN_PLACE UNIX

The program takes the orders of load.c and prints the same lines: "ready", then for each line of
stdin one batch and "done SECONDS CPU_SECONDS". The CPU time counts all threads of the process.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time

import numpy as np
from numpy.typing import NDArray

import reducer_client

Numbers = NDArray[np.float32]


class Rounds:
    """The arrays of a batch. Its numbers are small integers, different in each round and rank:
    their sums are exact in every order."""

    def __init__(self, rank: int, workers: int, size: int, rounds: int, in_place: bool) -> None:
        self._scale = rank + 1
        self._summed = workers * (workers + 1) // 2
        self._base = (np.arange(size // 4) % 997).astype(np.float32)
        self._first = 0  # number of the batch's first round
        self.given = np.zeros((rounds, size // 4), np.float32)
        self.results = self.given if in_place else np.zeros_like(self.given)
        self._make()

    def check(self) -> None:
        """Check the results, and make the numbers of the next batch."""
        for number, result in enumerate(self.results, self._first):
            if not np.array_equal(result, self._base * np.float32(_factor(number) * self._summed)):
                raise AssertionError(f"wrong sum in round {number}")
        self._first += len(self.given)
        self._make()

    def _make(self) -> None:
        for number, numbers in enumerate(self.given, self._first):
            np.multiply(self._base, np.float32(_factor(number) * self._scale), out=numbers)


def main() -> int:
    address, *rest = sys.argv[1:]
    rank, workers, size, chunk, rounds, in_place, unix = map(int, rest)
    batch = Rounds(rank, workers, size, rounds, bool(in_place))
    with reducer_client.connect(
        address,
        job="pair",
        rank=rank,
        world_size=workers,
        chunk_table=[(0, chunk)],
        transport="auto" if unix else "tcp",
    ) as group:
        print("ready", flush=True)
        for _ in sys.stdin:
            before = _cpu_seconds()
            seconds = [
                _exchange(group, given, result)
                for given, result in zip(batch.given, batch.results, strict=True)
            ]
            used = _cpu_seconds() - before
            batch.check()
            print(f"done {statistics.median(seconds):.9f} {used:.6f}", flush=True)
    return 0


def _exchange(group: reducer_client.Group, given: Numbers, result: Numbers) -> float:
    """Sum one array; returns the seconds of the round."""
    begun = time.perf_counter()
    group.all_reduce(given, out=result, key="bench").wait()
    return time.perf_counter() - begun


def _factor(number: int) -> int:
    return 1 + number % 5


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
