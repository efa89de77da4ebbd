"""One DDP worker of the demo, which trains the same model over the reducers and over gloo."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client
import reducer_client.torch
from reducer_client import Group
from reducer_client.config import keep_gloo_on_loopback
from reducer_tools.demo.messages import RUNS, Failure, Progress, RunResult, WorkerSettings

_TRAINING_IMAGES = 1440
_BATCH = 24


def main(settings: WorkerSettings, connection: Connection) -> None:
    """The main function of a worker process."""
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    try:
        _train_both(settings, connection)
    except Exception:
        connection.send(Failure(settings.rank, traceback.format_exc()))


def _train_both(settings: WorkerSettings, connection: Connection) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings.folder}/store",
        rank=settings.rank,
        world_size=settings.world_size,
    )
    with reducer_client.connect(
        settings.addresses, job="demo", rank=settings.rank, world_size=settings.world_size
    ) as group:
        connection.send(_Training(settings, connection, RUNS[0], group).run())
    connection.send(_Training(settings, connection, RUNS[1], None).run())
    dist.destroy_process_group()


class _Training:
    """One run. Equal seeds give both runs the same data order and the same first parameters."""

    def __init__(
        self, settings: WorkerSettings, connection: Connection, run: str, group: Group | None
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._run = run
        self._group = group
        torch.manual_seed(settings.seed)
        self._model = DistributedDataParallel(_make_net())
        self._state = reducer_client.torch.attach(self._model, group) if group else None
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        self._schedule = torch.optim.lr_scheduler.ExponentialLR(self._optimizer, gamma=0.85)
        images, labels = _load_images(Path(settings.folder) / "digits.npz")
        self._training = images[:_TRAINING_IMAGES], labels[:_TRAINING_IMAGES]
        self._test = images[_TRAINING_IMAGES:], labels[_TRAINING_IMAGES:]

    def run(self) -> RunResult:
        losses: list[float] = []
        self._barrier()
        started = time.perf_counter()
        for epoch in range(self._settings.epochs):
            losses += self._average(self._train_epoch(epoch))
            if self._settings.rank == 0:
                self._connection.send(Progress(self._run, epoch + 1, losses[-1]))
        seconds = time.perf_counter() - started
        return RunResult(
            self._run,
            self._settings.rank,
            losses,
            self._accuracy(),
            self._gradient_bytes(len(losses)),
            seconds,
            self._digest(),
            self._group.stats()["late"] if self._group else {},
        )

    def _train_epoch(self, epoch: int) -> list[float]:
        losses = []
        for images, labels in self._batches(epoch):
            self._optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self._model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._optimizer.step()
            losses.append(loss.item())
        self._schedule.step()
        return losses

    def _batches(self, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = np.random.default_rng((self._settings.seed, epoch)).permutation(_TRAINING_IMAGES)
        mine = torch.from_numpy(order[self._settings.rank :: self._settings.world_size].copy())
        images, labels = self._training
        for batch in torch.split(mine, _BATCH):
            yield images[batch], labels[batch]

    def _average(self, losses: list[float]) -> list[float]:
        mean = np.asarray(losses)
        if self._group is not None:
            return [float(x) for x in self._group.all_reduce(mean, op="mean", key="loss").wait()]
        total = torch.from_numpy(mean)
        dist.all_reduce(total)
        return [float(x) / self._settings.world_size for x in total]

    def _barrier(self) -> None:
        if self._group is not None:
            self._group.barrier()
        else:
            dist.barrier()

    def _accuracy(self) -> float:
        images, labels = self._test
        with torch.no_grad():
            guesses = self._model.module(images).argmax(1)
        return float((guesses == labels).float().mean())

    def _gradient_bytes(self, steps: int) -> int:
        if self._state is not None:
            return self._state.bytes_reduced
        return steps * sum(p.numel() * p.element_size() for p in self._model.parameters())

    def _digest(self) -> str:
        parameters = (p.detach().numpy().tobytes() for p in self._model.parameters())
        return hashlib.sha256(b"".join(parameters)).hexdigest()


def _make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _load_images(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """(images, labels), shuffled once: float32 of shape (n, 1, 8, 8) from 0 to 1, and int64."""
    with np.load(path) as digits:
        images, labels = digits["images"], digits["labels"]
    order = np.random.default_rng(0).permutation(len(labels))
    pixels = (images[order] / 16.0).astype(np.float32)[:, None]
    return torch.from_numpy(pixels), torch.from_numpy(labels[order].astype(np.int64))
