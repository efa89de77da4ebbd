"""The figures of a finished demo, and the reasons why it has failed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from reducer_tools.demo.messages import RUNS, WARMUP, RunResult

# Both runs add the same numbers in different orders.
_LOSS_TOLERANCE = 0.02


@dataclass(frozen=True)
class Run:
    """One run over all ranks.

    ``seconds`` has the slowest worker's time of each step, and ``losses`` the mean of the workers.
    ``step`` is the median of the measured steps, and ``sent`` the number of bytes that a worker's
    interface sent in one of them.
    """

    name: str
    seconds: list[float]
    losses: list[float]
    step: float
    sent: float
    gradients: int
    digests: list[str]


def summarize(ranks: Sequence[Sequence[RunResult]]) -> dict[str, Run]:
    """The runs by name, from the results of each rank."""
    return {name: _join([results[number] for results in ranks]) for number, name in enumerate(RUNS)}


def _join(ranks: Sequence[RunResult]) -> Run:
    seconds = [max(step) for step in zip(*(rank.seconds for rank in ranks), strict=True)]
    measured = seconds[WARMUP:]
    return Run(
        ranks[0].run,
        seconds,
        [statistics.fmean(step) for step in zip(*(rank.losses for rank in ranks), strict=True)],
        statistics.median(measured),
        statistics.fmean(rank.sent for rank in ranks) / len(measured),
        ranks[0].gradients,
        [rank.digest for rank in ranks],
    )


def find_faults(runs: dict[str, Run]) -> list[str]:
    """The reasons why the demo has failed; empty if it has succeeded."""
    faults = []
    for name, run in runs.items():
        if (different := len(set(run.digests))) != 1:
            faults.append(f"{name}: the workers hold {different} different sets of parameters")
    ours, theirs = (runs[name].losses[-1] for name in RUNS)
    if not abs(ours - theirs) <= _LOSS_TOLERANCE * theirs:
        faults.append(f"the loss is {ours:.4f} over the reducers, {theirs:.4f} over gloo")
    return faults
