"""One rank's part of a comparison: every method in turn, in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.compression.digits import EPOCHS, Digits, make_net
from bench.compression.methods import Attach
from reducer_client import Group
from reducer_client.torch import ReductionState
from reducer_client.torch.backend.process_group import ReducerProcessGroup

# Small enough for several buckets, so that hooks that block in callbacks block at the same time.
_BUCKET_MIB = 0.2


@dataclass(frozen=True)
class Outcome:
    """The measurements of one rank with one method.

    Args:
        bytes_moved: all bytes sent and received during the training.
        bytes_on_wire: bytes counted by the state of our own hooks; None for other hooks.
        digest: a hash of the bits of all parameters.
    """

    accuracy: float
    steps: int
    seconds: float
    bytes_moved: int
    bytes_on_wire: int | None
    narrowing_error: float | None
    digest: str


def compare(
    methods: Mapping[str, Attach], digits: Digits, seed: int, epochs: int = EPOCHS
) -> dict[str, Outcome]:
    """Train with each method; the default process group must have the backend "reducer"."""
    return {name: _run(attach, digits, seed, epochs) for name, attach in methods.items()}


def _run(attach: Attach, digits: Digits, seed: int, epochs: int) -> Outcome:
    process_group = dist.group.WORLD
    assert isinstance(process_group, ReducerProcessGroup)
    group = process_group.reducer_group
    assert group is not None
    model = DistributedDataParallel(make_net(seed), bucket_cap_mb=_BUCKET_MIB)
    state = attach(model, group)
    ours = state if isinstance(state, ReductionState) else None
    before = _moved(group)
    trained = digits.train(model, seed, epochs)
    return Outcome(
        trained.accuracy,
        trained.steps,
        trained.seconds,
        _moved(group) - before,
        None if ours is None else ours.bytes_on_wire,
        None if ours is None else ours.narrowing.error,
        _digest(model),
    )


def _moved(group: Group) -> int:
    stats = group.stats()
    return int(stats["bytes_sent"] + stats["bytes_received"])


def _digest(model: nn.Module) -> str:
    parameters = (p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(b"".join(parameters)).hexdigest()
