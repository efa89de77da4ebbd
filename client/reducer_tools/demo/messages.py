"""What the processes of the demo tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field

RUNS = ("reducers", "gloo")


@dataclass(frozen=True)
class Plan:
    """What one worker is told."""

    rank: int
    world_size: int
    parent: int
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
    """What one worker has to say about one run."""

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
    """The traceback of a worker that cannot go on."""

    rank: int
    text: str
