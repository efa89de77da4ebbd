"""A worker of `QuorumOptimizer`: the program of a process or thread, and the replay of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import nn

import reducer_client
from reducer_client.tables.modes import MOST_LEFT_OUT
from reducer_client.torch import QuorumOptimizer
from tests.support.wait import wait_until

STEPS = 12
LAG = 3  # steps that the slow worker lets pass before each of its own, unless they wait for it
SECONDS = 60.0


class Line(NamedTuple):
    """What a worker did: its ``number``-th gradient was for step ``entered``."""

    number: int
    entered: int
    outcome: str
    version: int
    print: str


def net(seed: int = 0) -> nn.Sequential:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 90), nn.Tanh(), nn.Linear(90, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 5)
    return model


def backward(model: nn.Module, worker: int, number: int) -> None:
    generator = torch.Generator().manual_seed(1_000 * worker + number)
    images = torch.randn(16, 20, generator=generator)
    labels = torch.randint(0, 5, (16,), generator=generator)
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()


def inner(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.StepLR]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)


def fingerprint(model: nn.Module) -> str:
    found = sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def make(ps: Any, model: nn.Module, **options: Any) -> QuorumOptimizer:
    optimizer, scheduler = inner(model)
    return QuorumOptimizer(optimizer, model, ps, k=2, scheduler=scheduler, **options)


def train(
    opt: QuorumOptimizer, model: nn.Module, worker: int, is_slow: bool, tell: Callable[[Line], Any]
) -> None:
    """Train until all workers are at the last version."""
    number, last_in = 0, 0
    while opt.version < STEPS:
        if is_slow:
            passed = min(opt.version + LAG, last_in + MOST_LEFT_OUT, STEPS)
            wait_until(lambda passed=passed: opt.table.step >= passed, SECONDS)  # type: ignore[misc]
        backward(model, worker, number)
        entered = opt.version + 1
        opt.step()
        assert opt.receipt is not None
        tell(Line(number, entered, opt.receipt.outcome, opt.version, fingerprint(model)))
        number += 1
        if opt.receipt.outcome == "applied":
            last_in = entered


def replay(lines: Iterable[tuple[int, Line]]) -> dict[int, str]:
    """The fingerprint of each version in one process, from the sets that the receipts tell."""
    sets: dict[int, list[tuple[int, int]]] = {}
    for worker, line in lines:
        if line.outcome == "applied":
            sets.setdefault(line.entered, []).append((worker, line.number))
    assert sorted(sets) == [*range(1, STEPS + 1)]
    model = net()
    optimizer, scheduler = inner(model)
    prints = {}
    for version in range(1, STEPS + 1):
        gradients = []
        for each in sorted(sets[version]):
            backward(model, *each)
            gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for parameter, parts in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            parameter.grad = total / len(parts)
        optimizer.step()
        scheduler.step()
        prints[version] = fingerprint(model)
    return prints


def run(worker: int, workers: int, addresses: list[str], job: str) -> list[tuple[int, Line]]:
    """The program of a process. Returns its lines."""
    lines: list[tuple[int, Line]] = []
    with reducer_client.parameter_server(
        addresses, job=job, worker=worker, workers=workers, timeout=SECONDS
    ) as ps:
        model = net(worker)  # worker 0's parameters are taken over
        opt = make(ps, model)
        opt.start()
        train(opt, model, worker, worker == 2, lambda line: lines.append((worker, line)))
    return lines
