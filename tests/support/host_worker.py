"""One of several ranks on a host with its own NIC: sums flat and in two levels; one JSON line.

Reads torchrun's variables and REDUCER_ADDRS. Its argument is the file through which ranks meet.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import reducer_client.torch as reducer_torch

ELEMENTS = 2 << 20
STEPS = 4


def _nic_bytes() -> dict[str, int]:
    folder = Path("/sys/class/net/eth0/statistics")
    return {way: int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx")}


def _contribution(rank: int, step: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(100 * step + rank))


def _measure(group: Any) -> dict[str, Any]:
    """Bytes on the host's NIC for all its ranks, and a digest of the results."""
    tensors = [_contribution(dist.get_rank(), step) for step in range(STEPS)]
    dist.barrier()
    before = _nic_bytes()
    dist.barrier()
    works = [dist.all_reduce(t, dist.ReduceOp.AVG, group, async_op=True) for t in tensors]
    for work in works:
        work.wait()
    dist.barrier()
    after = _nic_bytes()
    dist.barrier()
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()
    error = max(_error(step, tensor) for step, tensor in enumerate(tensors))
    return {"digest": digest, "error": error} | {way: after[way] - before[way] for way in after}


def _error(step: int, tensor: torch.Tensor) -> float:
    world = dist.get_world_size()
    exact = sum(_contribution(rank, step).double() for rank in range(world)) / world
    return (tensor.double() - exact).abs().max().item()


def main() -> None:
    torch.set_num_threads(1)
    options = reducer_torch.Options(job="hosts")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"file://{sys.argv[1]}"
    dist.init_process_group(
        "reducer", init_method=where, rank=rank, world_size=world, pg_options=options
    )
    group: Any = dist.group.WORLD
    everyone = list(range(world))
    # A group for a second run, and a flat group to compare with.
    again = dist.new_group(everyone, pg_options=reducer_torch.Options(job="hosts", hierarchy=True))
    flat = dist.new_group(everyone, pg_options=reducer_torch.Options(job="hosts", hierarchy=False))
    layouts = [
        None if g.layout is None else [g.layout.hosts, g.layout.local_size]
        for g in (group, again, flat)
    ]
    found = {name: _measure(g) for name, g in (("first", group), ("again", again), ("flat", flat))}
    line = json.dumps({"rank": rank, "layouts": layouts, **found})
    dist.destroy_process_group()
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
