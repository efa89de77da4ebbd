"""The case, as given on the command line and written into every line of the results."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

# The contender that every run has: the same training without any communication.
COMPUTE = "compute"
# Trains with reducer_client.torch.Overlap; all others use DistributedDataParallel.
OVERLAP = "reducers-overlap"
# DDP on a process group of NCCL, where each worker passes for a host of its own. Needs CUDA.
NCCL = "nccl"
KINDS = (
    *("gloo", "gloo-bf16", NCCL, "reducers", "reducers-bf16", "reducers-priority", OVERLAP),
    COMPUTE,
)


@dataclass(frozen=True)
class Contender:
    """One way to exchange gradients; ``name`` is ``kind`` or ``kind@MiB``, its bucket size."""

    name: str
    kind: str
    bucket_mib: float | None

    @property
    def uses_reducers(self) -> bool:
        return self.kind.startswith("reducers")

    @property
    def is_exact(self) -> bool:
        """Whether float32 gradients are sent as float32."""
        return not self.kind.endswith("-bf16")

    @property
    def sums_alike(self) -> bool:
        """Whether the contender's sums have the bits of float32 sums by reducers."""
        return self.uses_reducers and self.is_exact


def parse_contender(name: str) -> Contender:
    """Raises ValueError for a name that is neither ``kind`` nor ``kind@MiB``."""
    match = re.fullmatch(r"([a-z0-9-]+)(?:@([0-9]+(?:\.[0-9]+)?))?", name)
    if match is None or match[1] not in KINDS:
        raise ValueError(f"contender {name!r}: expected one of {', '.join(KINDS)}, or one@MiB")
    return Contender(name, match[1], float(match[2]) if match[2] else None)


@dataclass(frozen=True)
class Case:
    """One run. A worker's part of a step is ``batch`` passages of ``sequence`` tokens.

    ``rate`` has tc's syntax, None for loopback. ``chunk`` (bytes) and ``credit`` are None for the
    defaults of client and daemon. The last contender is ``COMPUTE``. ``hosted``: the workers host
    reducers, too. ``device_ms``: see `bench.training.model.Device`. ``device``: "cpu" or "cuda".
    """

    size: str
    workers: int
    reducers: int
    lanes: int
    rate: str | None
    congestion: str
    chunk: int | None
    credit: str | None
    batch: int
    sequence: int
    warmup: int
    blocks: int
    steps: int
    contenders: tuple[str, ...]
    hosted: bool = False
    device_ms: float = 0.0
    device: str = "cpu"

    @property
    def samples(self) -> int:
        """Number of passages per step, over all workers."""
        return self.workers * self.batch

    @property
    def turns(self) -> int:
        """Number of blocks of the run, including warm-up, over all contenders."""
        return (1 + self.blocks) * len(self.contenders)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "contenders": list(self.contenders)}


def from_json(fields: dict[str, Any]) -> Case:
    return Case(**{**fields, "contenders": tuple(fields["contenders"])})
