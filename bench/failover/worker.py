"""One worker of ``bench.failover``: reduces bucket after bucket and prints the time of each."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import reducer_client

CHECKED = 997  # checks every 997th element; checking all would take half of the time


def main() -> None:
    case = json.load(sys.stdin)
    rank, world = case["rank"], case["world"]
    values = np.full(case["bytes"] // 4, rank + 1, np.float32)
    out = np.empty_like(values)
    expected = world * (world + 1) / 2
    with reducer_client.connect(
        case["addresses"], job="failover", rank=rank, world_size=world
    ) as group:
        end = time.monotonic() + case["seconds"]
        stop = np.zeros(1, np.int32)
        while not stop[0]:
            group.all_reduce(values, out=out, key="bucket").wait()
            print(json.dumps({"at": time.monotonic()}), flush=True)
            if not (out[::CHECKED] == expected).all():
                raise SystemExit(f"rank {rank}: a wrong sum")
            if rank == 0:
                stop[0] = time.monotonic() > end
            stop = group.broadcast(stop, root=0, key="stop").wait()


main()
