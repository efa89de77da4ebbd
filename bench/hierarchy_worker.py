"""One rank of `bench.hierarchy`: reads its case from stdin, prints a JSON line per measurement."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

CONTENDERS = ("flat", "hierarchy")


def main() -> int:
    import torch
    import torch.distributed as dist

    case = json.loads(sys.stdin.readline())
    rank, world = case["rank"], case["world"]
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(case["local"])
    groups = _groups(case)
    # Small integers: exact in every order.
    tensor = torch.empty(case["bytes"] // 4)
    pattern = torch.arange(tensor.numel()) % 97
    for turn in range(case["turns"]):
        for name in CONTENDERS if turn % 2 == 0 else CONTENDERS[::-1]:
            torch.mul(pattern, rank + 1 + turn, out=tensor)
            dist.barrier(groups["flat"])
            began = time.monotonic()
            dist.all_reduce(tensor, group=groups[name])
            ended = time.monotonic()
            if not tensor.equal((pattern * (world * (world + 1) // 2 + world * turn)).float()):
                raise AssertionError(f"wrong sum by {name} in turn {turn} on rank {rank}")
            line = {"turn": turn, "contender": name, "began": began, "ended": ended}
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()
    return 0


def _groups(case: dict[str, Any]) -> dict[str, Any]:
    """The process group of each contender; each group has all ranks."""
    import torch.distributed as dist

    from reducer_client.torch import Options

    def options(hierarchy: bool) -> Options:
        return Options(addresses=case["addresses"], job="bench", hierarchy=hierarchy)

    dist.init_process_group(
        "reducer",
        init_method=f"file://{case['store']}",
        rank=case["rank"],
        world_size=case["world"],
        timeout=timedelta(seconds=120),
        pg_options=options(False),
    )
    ranks = list(range(case["world"]))
    return {
        "flat": dist.group.WORLD,
        "hierarchy": dist.new_group(ranks, pg_options=options(True)),
    }


if __name__ == "__main__":
    sys.exit(main())
