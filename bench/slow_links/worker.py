"""A worker of `bench.slow_links.text`: reads its case from standard input, prints JSON lines.

The case's ``part`` says what it does with each of the ``methods``:

``train``: trains. Rank 0 prints {"method", "step", "loss", "received", "sent"} now and then: the
    loss of the validation text, and the payload that the reducers have counted in this training. At
    the end each rank prints {"method", "digest"}, a hash of its parameters.
``exchange``: makes the method's exchanges and nothing else; prints {"method", "seconds": [...]}.

With ``compute`` it makes steps alone, without a group, and prints {"seconds": [...]}.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.request import urlopen

import torch
import torch.distributed as dist
from torch import nn

from bench.slow_links.contenders import METHODS
from bench.slow_links.corpus import Corpus
from bench.slow_links.model import CONTEXT, Hollow, Transformer
from reducer_client import Group
from reducer_client.config import keep_gloo_on_loopback
from reducer_client.torch import DiLoCo, Options
from reducer_client.torch.backend.process_group import ReducerProcessGroup

Case = Mapping[str, Any]
BATCH = 4  # windows of each rank
_RATE = 2e-3  # of AdamW, the same for all methods
_WARMUP = 0.05  # of all steps
_VALIDATION = 256  # windows
_COUNTER = re.compile(rb"^reducer_job_(received|sent)_bytes_total\{.*\} (\S+)$", re.MULTILINE)


def main() -> None:
    case: Case = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    if case["part"] == "compute":
        tell({"seconds": _compute(case["steps"])})
        return
    keep_gloo_on_loopback()
    group = join(case)
    for name in case["methods"]:
        {"train": _train, "exchange": _exchange}[case["part"]](case, name, group)
        dist.barrier()
    dist.destroy_process_group()


def join(case: Case) -> Group:
    """Join the process group of all workers; returns the group of the reducers in it."""
    os.environ["REDUCER_TRANSPORT"] = "tcp"  # a Unix socket would pass by the link
    os.environ["REDUCER_SILENCE"] = "30"  # on a busy machine a reducer is late, and not lost
    dist.init_process_group(
        "reducer",
        init_method=f"file://{case['store']}",
        rank=case["rank"],
        world_size=case["workers"],
        pg_options=Options(addresses=case["addresses"], job="slow-links"),
    )
    process_group = dist.group.WORLD
    assert isinstance(process_group, ReducerProcessGroup)
    assert process_group.reducer_group is not None
    return process_group.reducer_group


def _train(case: Case, name: str, group: Group) -> None:
    training = _Training(case, name, group)
    for step in range(1, case["steps"] + 1):
        training.step(step)
        if step == case["steps"]:
            training.finish()
        if step % case["evaluate"] == 0 or step == case["steps"]:
            training.evaluate(step)
    tell({"method": name, "digest": digest(training.net)})


class _Training:
    def __init__(self, case: Case, name: str, group: Group) -> None:
        torch.manual_seed(case["seed"])
        self.net = Transformer()
        inner = make_optimizer(self.net)
        self._case, self._name = case, name
        self._model, self._optimizer = METHODS[name].wrap(self.net, inner, group)
        self._corpus = Corpus(CONTEXT)
        self._before = self._counted()

    def step(self, step: int) -> None:
        set_rate(self._optimizer, step / self._case["steps"])
        batch = draw(self._corpus, self._case, step)
        train(self._model, self._optimizer, batch)

    def finish(self) -> None:
        if isinstance(self._optimizer, DiLoCo):
            self._optimizer.finish()

    def evaluate(self, step: int) -> None:
        """Between two barriers, so that the counters cover the steps of all ranks so far."""
        counted = self._counted()
        if self._case["rank"] == 0:
            loss = validate(self.net, self._corpus)
            gone = {name: counted[name] - self._before[name] for name in counted}
            tell({"method": self._name, "step": step, "loss": loss, **gone})
        dist.barrier()

    def _counted(self) -> dict[str, int]:
        dist.barrier()
        found = count(self._case["metrics"]) if self._case["rank"] == 0 else {}
        dist.barrier()
        return found


def schedule(progress: float) -> float:
    """The factor of the learning rate: a linear warm-up, then a cosine down to a tenth."""
    if progress < _WARMUP:
        return progress / _WARMUP
    share = (progress - _WARMUP) / (1 - _WARMUP)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * share))


def set_rate(optimizer: torch.optim.Optimizer, progress: float) -> None:
    for each in optimizer.param_groups:
        each["lr"] = _RATE * schedule(progress)


def draw(corpus: Corpus, case: Case, step: int) -> torch.Tensor:
    """A rank's batch. Trainings with other seeds see other windows."""
    return corpus.batch(BATCH, step + (case["seed"] << 32), case["rank"])


def validate(net: nn.Module, corpus: Corpus) -> float:
    with torch.no_grad():
        windows = torch.split(corpus.validation(_VALIDATION), 32)
        return float(sum(net(part).item() for part in windows) / len(windows))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).backward()
    optimizer.step()


def count(ports: Sequence[int]) -> dict[str, int]:
    """The payload that reducers have received and sent since they started."""
    found = {"received": 0, "sent": 0}
    for port in ports:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            for name, value in _COUNTER.findall(page.read()):
                found[name.decode()] += int(float(value))
    return found


def _exchange(case: Case, name: str, group: Group) -> None:
    """Exchanges of the size and in the way of the method, one after another."""
    net = Hollow(Transformer())
    method = METHODS[name].hurried()
    model, optimizer = method.wrap(net, torch.optim.SGD(net.parameters(), lr=1e-3), group)
    nothing = torch.zeros(())
    seconds = []
    for _ in range(case["warmup"] + case["steps"]):
        began = time.perf_counter()
        train(model, optimizer, nothing)
        seconds.append(time.perf_counter() - began)
    tell({"method": name, "seconds": seconds[case["warmup"] :]})


def _compute(steps: int) -> list[float]:
    net = Transformer()
    optimizer = make_optimizer(net)
    corpus = Corpus(CONTEXT)
    seconds = []
    for step in range(steps):
        began = time.process_time()  # one thread: the time that it takes with a core for itself
        train(net, optimizer, corpus.batch(BATCH, step, 0))
        seconds.append(time.process_time() - began)
    return seconds


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=_RATE, betas=(0.9, 0.95), fused=True)


def digest(net: nn.Module) -> str:
    parameters = (p.detach().numpy().tobytes() for p in net.parameters())
    return hashlib.sha256(b"".join(parameters)).hexdigest()


def tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
