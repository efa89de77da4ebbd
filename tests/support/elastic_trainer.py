"""One worker that trains with `Elastic`: `python -m tests.support.elastic_trainer JSON`.

The worker prints a line of JSON for each step: the step, the era, its samples, who is in the sums,
and the digests of its parameters and of its optimizer's state.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from reducer_client import ReducerError
from reducer_client.torch import Elastic
from tests.support.elastic_worker import say

SAMPLES = 601
OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=2e-3, betas=(0.8, 0.99)),
}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points and their classes."""
    rng = np.random.default_rng(7)
    points = rng.normal(size=(SAMPLES, 20)).astype(np.float32)
    classes = (points @ rng.normal(size=(20, 5))).argmax(1)
    return torch.from_numpy(points), torch.from_numpy(classes)


class Trainer:
    """Trains until ``steps``, or until the epoch in which the file ``end`` appears."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.steps, self.pause = options.pop("steps"), options.pop("pause")
        self.name, self.batch = options.pop("name"), options.pop("batch", 16)
        self.end, self.dies_at = Path(options.pop("end", "")), options.pop("dies_at", -1)
        torch.manual_seed(self.name)  # the workers differ until they are in
        hidden = nn.Linear(20, 300)
        self.model = nn.Sequential(hidden, nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 5))
        hidden.weight.register_post_accumulate_grad_hook(lambda _: self.maybe_die())
        kind = options.pop("optimizer", "momentum")
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.rate = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [40, 100], gamma=0.5)
        self.points, self.classes = data()
        self.options = options

    def run(self) -> None:
        began = time.monotonic()
        with Elastic(
            self.model, self.optimizer, rank=self.name, extra={"rate": self.rate}, **self.options
        ) as self.elastic:
            self.shards = self.elastic.shards(SAMPLES, self.batch)
            self.say("in", seconds=time.monotonic() - began)
            while not self.is_over():
                for indices in self.shards:
                    self.train(indices)
                    if self.is_over():
                        break
                stop = self.elastic.group.all_reduce(np.array([self.end.is_file()]), key="end")
                if stop.wait()[0]:
                    break
            self.say("end")

    def is_over(self) -> bool:
        return self.elastic.steps >= self.steps

    def train(self, indices: list[int]) -> None:
        elastic = self.elastic
        before = {"era": elastic.group.era, "epoch": self.shards.epoch, "step": elastic.steps}
        if len(indices) > 1:  # as batch norm demands
            scores = self.model(self.points[indices])
            nn.functional.cross_entropy(scores, self.classes[indices]).backward()
        elastic.reduce()
        members = sorted(elastic._reduced[0]) if elastic._reduced else []
        is_new = elastic.step(self.rate.step)
        self.say("step", new_era=is_new, samples=indices, members=members, exact=True,
                 ledgers=[[[0, len(members)]]], **before)  # fmt: skip
        time.sleep(self.pause)

    def maybe_die(self) -> None:
        """Die in the middle of a step: the last layer's gradients are in the sums."""
        if self.elastic.steps == self.dies_at:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

    def say(self, event: str, **fields: Any) -> None:
        say(**{
            "event": event, "name": self.name, "rank": self.elastic.rank,
            "era": self.elastic.group.era, "epoch": self.shards.epoch,
            "step": self.elastic.steps, "settled": self.elastic.settled,
            "redone": self.elastic.redone, "rate": self.rate.get_last_lr(),
            "digest": digest(list(self.model.parameters())), "moments": self.moments(),
            "at": time.monotonic(), **fields,
        })  # fmt: skip

    def moments(self) -> str:
        state = self.optimizer.state_dict()["state"]
        return digest([value for each in state.values() for value in each.values()])


def main() -> int:
    torch.set_num_threads(1)
    trainer = Trainer(json.loads(sys.argv[1]))
    try:
        trainer.run()
    except ReducerError as error:
        say(event="error", name=trainer.name, kind=type(error).__name__, reason=error.reason,
            text=str(error), step=0)  # fmt: skip
        return 3
    return 0


def digest(tensors: list[Any]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(torch.as_tensor(tensor).detach().numpy().tobytes())
    return total.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
