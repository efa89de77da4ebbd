"""The messages between the demo's processes."""

from __future__ import annotations

from dataclasses import dataclass

RUNS = ("reducers", "gloo")
# Samples of a worker in a step.
BATCH = 64
# Steps that one side trains before the other side has its turn.
BLOCK = 5
# The first steps of each side, which also set up connections and buckets, are not measured.
WARMUP = 3


@dataclass(frozen=True)
class Job:
    """What all workers know."""

    world_size: int
    addresses: list[str]
    folder: str
    key_file: str
    interface: str
    steps: int


@dataclass(frozen=True)
class Ready:
    """Sent by each worker when it has joined and is about to train."""


@dataclass(frozen=True)
class Step:
    """Sent by rank 0 after each step; ``number`` counts the steps of the run from 1."""

    run: str
    number: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class RunResult:
    """The result of one run on one worker, with a value for each step.

    ``sent`` is the number of bytes that the worker's interface sent in the measured steps, and
    ``gradients`` the number of bytes of the gradients of one step.
    """

    run: str
    seconds: list[float]
    losses: list[float]
    sent: int
    gradients: int
    digest: str
