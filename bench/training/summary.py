"""Each contender of `bench.training` in numbers, and the bounds that a ring has."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.training.case import COMPUTE, Case
from reducer_tools.netlab import PAYLOAD_SHARE, Nic

Line = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """The figures of one contender; seconds are per step, medians over blocks."""

    name: str
    samples_per_second: float
    step: float
    fastest: float
    slowest: float
    compute: float
    first_loss: float
    loss: float
    difference: float
    speedup: float
    lowest_speedup: float
    highest_speedup: float

    @property
    def exposed(self) -> float:
        return self.step - self.compute

    @property
    def efficiency(self) -> float:
        return self.compute / self.step


def summarize(case: Case, lines: Sequence[Line]) -> list[Row]:
    """One row for each contender that communicates.

    The speed-up compares medians with the first contender (gloo). Its minimum and maximum compare
    blocks that were measured next to each other.
    """
    blocks = {line["contender"]: [statistics.fmean(b) for b in line["seconds"]] for line in lines}
    compute = statistics.median(blocks[COMPUTE])
    trained = [line for line in lines if line["contender"] != COMPUTE]
    theirs = blocks[trained[0]["contender"]]
    rows = []
    for line in trained:
        ours = blocks[line["contender"]]
        step = statistics.median(ours)
        ratios = [t / o for t, o in zip(theirs, ours, strict=True)]
        rows.append(
            Row(
                line["contender"],
                case.samples / step,
                step,
                min(ours),
                max(ours),
                compute,
                line["losses"][0],
                statistics.fmean(line["losses"][-case.steps :]),
                line["largest_difference_from_gloo"],
                statistics.median(theirs) / step,
                min(ratios),
                max(ratios),
            )
        )
    return rows


def ring_overhead(ranks: int) -> float:
    """Bytes that a ring moves through a NIC, relative to reducers: 2(n-1)/n."""
    return 2 * (ranks - 1) / ranks


def ring_bound(case: Case, gradient_bytes: int, compute: float) -> float | None:
    """How much faster a step is with ideal reducers than with an ideal ring.

    Computation and communication do not overlap. None for a case without a rate.
    """
    rate = None if case.rate is None else Nic(case.rate).bytes_per_second
    if rate is None:
        return None
    wire = gradient_bytes / (rate * PAYLOAD_SHARE)
    return (compute + ring_overhead(case.workers) * wire) / (compute + wire)
