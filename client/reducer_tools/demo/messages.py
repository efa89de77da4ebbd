"""The messages between the demo's processes."""

from __future__ import annotations

from dataclasses import dataclass, field

RUNS = ("reducers", "gloo")


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of one worker."""

    rank: int
    world_size: int
    addresses: list[str]
    folder: str
    epochs: int
    seed: int = 7


@dataclass(frozen=True)
class Progress:
    """Sent by rank 0 after each epoch."""

    run: str
    epoch: int
    loss: float


@dataclass(frozen=True)
class RunResult:
    """The result of one run on one worker."""

    run: str
    rank: int
    losses: list[float]
    accuracy: float
    gradient_bytes: int
    seconds: float
    digest: str
    late: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """The traceback of a worker that failed."""

    rank: int
    text: str
