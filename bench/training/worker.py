"""One worker: reads its case from standard input, trains all contenders, prints JSON lines.

After each block it prints {"turn", "contender", "began", "ended": [one for each step], "losses"},
with times in seconds of the machine's monotonic clock, which all workers share. At the end it
prints {"contender", "digest", "difference", "reduced_bytes"} for each contender: a hash of the
parameters, their largest difference from gloo's, and the bytes of gradients that went through the
reducers. With a folder for traces, each contender then trains some more steps, under torch's
profiler on rank 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import reducer_client
from bench.training import devices
from bench.training.case import NCCL, Case, from_json, parse_contender
from bench.training.trace import record
from bench.training.trainer import Trainer
from reducer_client import Group


def main() -> None:
    order = json.loads(sys.stdin.readline())
    case, rank = from_json(order["case"]), order["rank"]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["REDUCER_SOCKET_IFNAME"] = order["interface"]
    os.environ["REDUCER_MEETING"] = order["meeting"]
    devices.enter(case.device, rank, order["interface"])
    dist.init_process_group(
        "gloo", init_method=f"file://{order['store']}", rank=rank, world_size=case.workers
    )
    with ExitStack() as stack:
        group = _join(case, rank, order["addresses"], stack, order["trace"] or None)
        contenders = [parse_contender(name) for name in case.contenders]
        nccl = dist.new_group(backend="nccl") if NCCL in {c.kind for c in contenders} else None
        trainers = [Trainer(case, contender, rank, group, nccl) for contender in contenders]
        _train(case, trainers)
        _compare(trainers)
        if order["trace"]:
            for trainer in trainers:
                record(trainer, case.device, Path(order["trace"]), rank)
        dist.barrier()
    dist.destroy_process_group()


def _join(
    case: Case, rank: int, addresses: list[str], stack: ExitStack, timeline: str | None
) -> Group | None:
    if not addresses and not case.hosted:
        return None
    return stack.enter_context(
        reducer_client.connect(
            addresses or None,
            hosted=case.hosted,
            job="training",
            rank=rank,
            world_size=case.workers,
            chunk_table=[(0, case.chunk)] if case.chunk else None,
            timeline=timeline,
        )
    )


def _train(case: Case, trainers: list[Trainer]) -> None:
    """Train in turns; turn 0 is the warm-up. The order is reversed from turn to turn."""
    for turn in range(1 + case.blocks):
        steps = case.steps if turn else case.warmup
        for trainer in trainers if turn % 2 else trainers[::-1]:
            _tell({"turn": turn, "contender": trainer.contender.name, **_block(trainer, steps)})


def _block(trainer: Trainer, steps: int) -> dict[str, Any]:
    dist.barrier()
    began = time.perf_counter()
    ended, losses = [], []
    for _ in range(steps):
        losses.append(trainer.step())
        ended.append(time.perf_counter())
    trainer.finish()
    ended[-1] = time.perf_counter()
    return {"began": began, "ended": ended, "losses": losses}


def _compare(trainers: list[Trainer]) -> None:
    reference = next((t for t in trainers if t.contender.kind == "gloo"), trainers[0])
    theirs = reference.parameters()
    for trainer in trainers:
        _tell(
            {
                "contender": trainer.contender.name,
                "digest": trainer.digest(),
                "difference": float((trainer.parameters() - theirs).abs().max()),
                "reduced_bytes": trainer.reduced_bytes,
            }
        )


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
