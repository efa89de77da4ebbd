"""One DDP worker as a user writes it: nothing catches what its training raises, nothing closes.

    python -m tests.support.ddp_worker RANK WORLD ADDRESSES JOB STORE

It prints a line of JSON at the start of each step, one for the error that ends the training, and
one when no thread or handler of ours keeps the process alive.
"""

from __future__ import annotations

import atexit  # imported first: handlers run in reverse order
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client
import reducer_client.torch as reducer_torch
from reducer_client.config import keep_gloo_on_loopback


def main() -> None:
    atexit.register(lambda: print(json.dumps({"left": time.monotonic()}), flush=True))
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    store = f"file://{sys.argv[5]}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    group = reducer_client.connect(sys.argv[3], job=sys.argv[4], rank=rank, world_size=world)
    module = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
    model = DistributedDataParallel(module)
    state = reducer_torch.attach(model, group)
    for step in range(100_000):
        print(json.dumps({"step": step}), flush=True)
        loss = model(torch.ones(16, 64)).square().mean()
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            print(json.dumps(_told(error, state.last_error)), flush=True)
            raise


def _told(error: RuntimeError, kept: Exception | None) -> dict[str, object]:
    """The error that DDP raised, its time, and what the hook's state still holds."""
    told: dict[str, object] = {"raised": time.monotonic(), "text": str(error)}
    if isinstance(kept, reducer_client.PeerLostError):
        told["kept"] = [kept.rank, kept.round, kept.key, kept.reason]
    return told


if __name__ == "__main__":
    main()
