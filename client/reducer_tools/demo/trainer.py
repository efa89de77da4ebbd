"""One side of the demo on one worker: a model, wrapped in DDP as a user would do."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import torch
import torch._dynamo  # else each worker imports it later, at the first use of an optimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch
from reducer_client import Group
from reducer_tools.demo.messages import BATCH, WARMUP, Job, RunResult
from reducer_tools.demo.text import CONTEXT, SIGNS, Text

_SEED = 7
_WIDTH, _HIDDEN = 64, 1200


class Trainer:
    """Trains over the reducers of ``group``, or over gloo if it is None.

    Both sides have the same first parameters, and see the same data in the same order.
    """

    def __init__(self, run: str, job: Job, rank: int, text: Text, group: Group | None) -> None:
        self.run = run
        self._job = job
        self._rank = rank
        self._text = text
        torch.manual_seed(_SEED)
        # The seed makes the parameters equal, and the digests check this.
        self._model = DistributedDataParallel(_make_net(), init_sync=False)
        if group is not None:
            reducer_client.torch.attach(self._model, group)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.002, fused=True)
        self._seconds: list[float] = []
        self._losses: list[float] = []
        self._sent = 0

    @property
    def steps(self) -> int:
        """Steps so far."""
        return len(self._losses)

    def step(self) -> tuple[float, float]:
        """Train one step; returns its seconds and this worker's loss."""
        seed = self.steps * self._job.world_size + self._rank
        contexts, following = self._text.batch(BATCH, seed)
        began = time.perf_counter()
        before = sent_bytes(self._job.interface)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._model(contexts), following)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._optimizer.step()
        self._seconds.append(time.perf_counter() - began)
        self._losses.append(loss.item())
        if self.steps > WARMUP:
            self._sent += sent_bytes(self._job.interface) - before
        return self._seconds[-1], self._losses[-1]

    def result(self) -> RunResult:
        parameters = list(self._model.parameters())
        bits = b"".join(p.detach().numpy().tobytes() for p in parameters)
        return RunResult(
            self.run,
            self._seconds,
            self._losses,
            self._sent,
            sum(p.numel() * p.element_size() for p in parameters),
            hashlib.sha256(bits).hexdigest(),
        )


def sent_bytes(interface: str) -> int:
    """The bytes that an interface of this process's network has sent so far."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise RuntimeError(f"/proc/self/net/dev: expected a line for {interface}")


def _make_net() -> nn.Module:
    """Predicts the next letter of a text: 780,000 parameters."""
    return nn.Sequential(
        nn.Embedding(SIGNS, _WIDTH),
        nn.Flatten(),
        nn.Linear(CONTEXT * _WIDTH, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, SIGNS),
    )
