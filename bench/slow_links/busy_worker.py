"""A worker of `bench.slow_links.busy`: reads its case from standard input, prints JSON lines.

For each method it prints {"method", "wall", "computing"}: the seconds of its steps, and for how
many of them its accelerator was at work.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from bench.slow_links.contenders import METHODS
from bench.slow_links.model import Accelerated
from bench.slow_links.worker import join
from reducer_client import Group
from reducer_client.config import keep_gloo_on_loopback

Case = Mapping[str, Any]


def main() -> None:
    case: Case = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    group = join(case)
    for name, steps in case["methods"].items():
        print(json.dumps({"method": name, **_measure(case, name, steps, group)}), flush=True)
    dist.destroy_process_group()


def _measure(case: Case, name: str, steps: int, group: Group) -> dict[str, float]:
    net = Accelerated(case["layers"], case["size"], case["seconds"])
    inner = torch.optim.SGD(net.parameters(), lr=1e-3)
    model, optimizer = METHODS[name].wrap(net, inner, group)
    for _ in range(case["warmup"]):
        _step(model, optimizer)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        _step(model, optimizer)
    wall = time.perf_counter() - began
    dist.barrier()
    return {"wall": wall, "computing": steps * case["seconds"]}


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model().backward()
    optimizer.step()


if __name__ == "__main__":
    main()
