"""One worker of `bench.reducer_cpu` on our side: the counterpart of reference/load.c.

    python -m bench.reducer_cpu_worker ADDRESS RANK WORKERS BYTES CHUNK_BYTES

Prints "ready", then reads numbers of rounds from stdin, one per line. It runs and checks each batch
of rounds, and prints "done SECONDS": the time of the exchanges, without making and checking the
numbers. It ends at the end of stdin.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import reducer_client


def main() -> int:
    address, *numbers = sys.argv[1:]
    rank, workers, size, chunk = map(int, numbers)
    base = (np.arange(size // 4) % 997).astype(np.float32)
    given, result = np.empty_like(base), np.empty_like(base)
    summed = workers * (workers + 1) // 2
    number = 0
    with reducer_client.connect(
        address,
        job="cpu",
        rank=rank,
        world_size=workers,
        chunk_table=[(0, chunk)],
        transport="tcp",  # as the programs in C
    ) as group:
        print("ready", flush=True)
        for line in sys.stdin:
            exchanging = 0.0
            for _ in range(int(line)):
                # Small integers, different in each round and rank: sums are exact in every order.
                factor = 1 + number % 5
                np.multiply(base, factor * (rank + 1), out=given)
                begun = time.perf_counter()
                group.all_reduce(given, out=result, key="bench").wait()
                exchanging += time.perf_counter() - begun
                if not np.array_equal(result, base * np.float32(factor * summed)):
                    raise AssertionError(f"wrong sum in round {number} on rank {rank}")
                number += 1
            print(f"done {exchanging:.6f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
