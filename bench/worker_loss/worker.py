"""One worker of ``bench.worker_loss``: trains on digits, and prints a line for each step."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from bench.worker_loss.sides import SIDES, Side
from reducer.parent import die_with_parent

BATCH = 16


def say(**line: Any) -> None:
    print(json.dumps({"at": time.monotonic(), **line}), flush=True)


def train(side: Side, images: torch.Tensor, labels: torch.Tensor) -> None:
    rng = np.random.default_rng()
    while True:
        rows = rng.integers(len(images), size=BATCH)
        side.begin()
        loss = nn.functional.cross_entropy(side.model(images[rows]), labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        is_done = side.end()
        say(event="step", done=is_done, step=side.step(), workers=side.workers(),
            digest=digest(side.model))  # fmt: skip


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(parameter.detach().numpy().tobytes())
    return total.hexdigest()[:16]


def main() -> None:
    die_with_parent(os.getppid())  # a worker that was stopped would notice nothing
    case = json.load(sys.stdin)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    width = case["width"]
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    say(event="ready")
    side = SIDES[case["side"]](case, model, optimizer)
    train(side, torch.from_numpy((images / 16).astype(np.float32)), torch.from_numpy(labels))


main()
