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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from reducer_client import ReducerError
from reducer_client.torch import Elastic
from tests.support.elastic_worker import say

SAMPLES = 601  # that are made
DIGITS = 1440  # of 1,797; the others are for the test


class Data(NamedTuple):
    """Points and their classes, for training and for the test."""

    points: torch.Tensor
    classes: torch.Tensor
    test: tuple[torch.Tensor, torch.Tensor]


def synthetic() -> Data:
    rng = np.random.default_rng(7)
    points = rng.normal(size=(2 * SAMPLES, 20)).astype(np.float32)
    classes = (points @ rng.normal(size=(20, 5))).argmax(1)
    x, y = torch.from_numpy(points), torch.from_numpy(classes)
    return Data(x[:SAMPLES], y[:SAMPLES], (x[SAMPLES:], y[SAMPLES:]))


def digits() -> Data:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy((images[order] / 16).astype(np.float32))
    y = torch.from_numpy(labels[order].astype(np.int64))
    return Data(x[:DIGITS], y[:DIGITS], (x[DIGITS:], y[DIGITS:]))


class Trainer:
    """Trains until ``steps`` or ``epochs``, or until the file ``end`` appears.

    A worker leaves as soon as the file ``leave`` appears.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.steps, self.pause = options.pop("steps"), options.pop("pause")
        self.name, self.batch = options.pop("name"), options.pop("batch", 16)
        self.epochs = options.pop("epochs", 1 << 40)
        self.end, self.leave = (Path(options.pop(name, "")) for name in ("end", "leave"))
        self.dies_at = options.pop("dies_at", -1)
        self.is_over = self.steps < 1
        self.data = digits() if options.pop("data", "") == "digits" else synthetic()
        features, kinds = self.data.points.shape[1], int(self.data.classes.max()) + 1
        torch.manual_seed(self.name)  # the workers differ until they are in
        hidden = nn.Linear(features, 300)
        self.model = nn.Sequential(hidden, nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, kinds))
        hidden.weight.register_post_accumulate_grad_hook(lambda _: self.maybe_die())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.rate = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [40, 100], gamma=0.5)
        self.options = options

    def run(self) -> None:
        began = time.monotonic()
        with Elastic(
            self.model, self.optimizer, rank=self.name, extra={"rate": self.rate}, **self.options
        ) as self.elastic:
            self.shards = self.elastic.shards(len(self.data.points), self.batch)
            self.say("in", seconds=time.monotonic() - began)
            while not self.is_over:
                for indices in self.shards:
                    self.train(indices)
                    if self.is_over:
                        break
            self.say("end", accuracy=self.accuracy())

    def train(self, indices: list[int]) -> None:
        elastic = self.elastic
        before = {
            "era": elastic.group.era, "rank": elastic.rank, "epoch": self.shards.epoch,
            "step": elastic.steps,
        }  # fmt: skip
        dealt = [[rank, part.tolist()] for rank, part in self.shards._dealt.items()]
        if len(indices) > 1:  # as batch norm demands
            scores = self.model(self.data.points[indices])
            nn.functional.cross_entropy(scores, self.data.classes[indices]).backward()
        # This call is made within the step: a worker that joins takes no part in calls after it.
        ends = elastic.group.all_reduce(np.array([self.end.is_file()]), key="end").wait()
        elastic.reduce()
        members = sorted(elastic._reduced[0]) if elastic._reduced else []
        is_new = elastic.step(self.rate.step)
        self.is_over = (
            bool(ends[0]) or elastic.steps >= self.steps or self.shards.epoch >= self.epochs
            or self.leave.is_file()
        )  # fmt: skip
        self.say("step", new_era=is_new, samples=indices, dealt=dealt, members=members,
                 exact=True, ledgers=[[[0, len(members)]]], **before)  # fmt: skip
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

    def accuracy(self) -> float:
        points, classes = self.data.test
        self.model.eval()
        return float((self.model(points).argmax(1) == classes).float().mean())

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
