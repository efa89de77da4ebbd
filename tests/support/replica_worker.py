"""One DDP worker whose place comes from the environment alone.

It trains over the reducers and then over gloo, and prints the digests of both models as JSON.
"""

from __future__ import annotations

import hashlib
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client
import reducer_client.torch as reducer_torch

STEPS = 5


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with reducer_client.connect() as group:
        ours = _make()
        state = reducer_torch.attach(ours, group)
        theirs = _make()
        found = {"rank": group.rank, "world": group.world_size, "job": group.job}
        digests = {"reducers": _train(ours, group.rank), "gloo": _train(theirs, group.rank)}
        print(json.dumps({**found, **digests, "bytes": state.bytes_reduced}), flush=True)
    dist.destroy_process_group()


def _make() -> DistributedDataParallel:
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    return DistributedDataParallel(net)


def _train(model: DistributedDataParallel, rank: int) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    values = [value.detach().numpy().tobytes() for value in model.parameters()]
    return hashlib.sha256(b"".join(values)).hexdigest()


if __name__ == "__main__":
    main()
