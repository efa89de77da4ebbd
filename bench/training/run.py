"""Runs one case: hosts, reducers and workers, and the checks of the results."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.fleet import Fleet, Place, ThisMachine
from bench.training.case import COMPUTE, Case, parse_contender
from reducer_tools.netlab import Lab, Nic

# Limit for the difference of the last block's mean loss, relative to gloo's.
_LOSS_TOLERANCE = 0.01
_NARROW_LOSS_TOLERANCE = 0.05
_SILENCE_SECONDS = 300.0

OnTurn = Callable[[str, int], None]


class TrainingError(Exception):
    """The contenders computed different results; the text names them and the difference."""


@dataclass
class Outcome:
    """The results of one contender: seconds of each step by measured block, losses of all steps."""

    name: str
    blocks: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    difference: float = 0.0
    reduced_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "contender": self.name,
            "seconds": [[round(second, 6) for second in block] for block in self.blocks],
            "losses": [round(loss, 6) for loss in self.losses],
            "parameters_sha256": self.digests[0],
            "reduced_bytes": self.reduced_bytes,
            "largest_difference_from_gloo": self.difference,
        }


def run(case: Case, on_turn: OnTurn, trace: Path | None = None) -> list[Outcome]:
    """Measure a case. Raises TrainingError, FleetError or LabError.

    ``trace``: folder for traces of some steps of each contender; they slow the whole run down.
    """
    workers = [f"w{n}" for n in range(case.workers)]
    reducers = [f"r{n}" for n in range(case.reducers)] if _needs_reducers(case) else []
    with ExitStack() as stack:
        place = _open_place(case, workers + reducers, stack)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        fleet = stack.enter_context(Fleet(place))
        credit = ["--credit", case.credit] if case.credit else []
        order = {
            "case": case.as_json(),
            "store": f"{folder}/store",
            "interface": "lo" if case.rate is None else "eth0",
            "addresses": fleet.start_reducers(reducers, *credit, lanes=case.lanes),
            "meeting": f"{place.address(workers[0])}:2224",
            "trace": str(trace.resolve()) if trace else "",
        }
        orders = [{**order, "rank": rank} for rank in range(case.workers)]
        lines = fleet.run_workers(workers, "bench.training.worker", orders, _SILENCE_SECONDS)
        outcomes = _collect(case, lines, on_turn)
    check_outcomes(outcomes)
    return outcomes


def _needs_reducers(case: Case) -> bool:
    return any(parse_contender(name).uses_reducers for name in case.contenders)


def _open_place(case: Case, hosts: Sequence[str], stack: ExitStack) -> Place:
    if case.rate is None:
        return ThisMachine()
    return stack.enter_context(Lab(dict.fromkeys(hosts, Nic(case.rate)), case.congestion))


def _collect(
    case: Case, lines: Iterator[tuple[int, dict[str, Any]]], on_turn: OnTurn
) -> list[Outcome]:
    outcomes = {name: Outcome(name) for name in case.contenders}
    blocks: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for _, line in lines:
        outcome = outcomes[line["contender"]]
        if "digest" in line:
            outcome.digests.append(line["digest"])
            outcome.reduced_bytes += line["reduced_bytes"]
            outcome.difference = max(outcome.difference, line["difference"])
            continue
        ranks = blocks.setdefault((outcome.name, line["turn"]), [])
        ranks.append(line)
        if len(ranks) == case.workers:
            _add_block(outcome, line["turn"], ranks)
            on_turn(outcome.name, line["turn"])
    return list(outcomes.values())


def _add_block(outcome: Outcome, turn: int, ranks: Sequence[dict[str, Any]]) -> None:
    losses = zip(*(rank["losses"] for rank in ranks), strict=True)
    outcome.losses += [statistics.fmean(of_ranks) for of_ranks in losses]
    if turn > 0:
        outcome.blocks.append(step_seconds(ranks))


def step_seconds(ranks: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds between the ends of steps, each on its slowest rank; their sum is the block."""
    ends = [max(of_ranks) for of_ranks in zip(*(rank["ended"] for rank in ranks), strict=True)]
    begins = [max(rank["began"] for rank in ranks), *ends[:-1]]
    return [end - begin for begin, end in zip(begins, ends, strict=True)]


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raises TrainingError unless all ranks agree and all contenders agree with the first."""
    trained = [outcome for outcome in outcomes if outcome.name != COMPUTE]
    for outcome in trained:
        if len(different := set(outcome.digests)) != 1:
            raise TrainingError(
                f"{outcome.name}: the ranks ended with {len(different)} different sets of "
                "parameters, expected one; a gradient was summed wrongly or not everywhere"
            )
    _check_bits([o for o in trained if parse_contender(o.name).sums_alike])
    theirs = _last_loss(trained[0])
    for outcome in trained:
        exact = parse_contender(outcome.name).is_exact
        allowed = _LOSS_TOLERANCE if exact else _NARROW_LOSS_TOLERANCE
        ours = _last_loss(outcome)
        if not abs(ours - theirs) <= allowed * theirs:
            raise TrainingError(
                f"{outcome.name}: ended with a loss of {ours:.4f}, {trained[0].name} with "
                f"{theirs:.4f}; expected at most {allowed:.0%} apart"
            )


def _check_bits(outcomes: Sequence[Outcome]) -> None:
    """Raises TrainingError unless the contenders have the same losses and parameters, as bits."""
    for outcome in outcomes[1:]:
        if (outcome.losses, outcome.digests) != (outcomes[0].losses, outcomes[0].digests):
            raise TrainingError(
                f"{outcome.name}: other bits than {outcomes[0].name} in the losses or the "
                "parameters; expected the same, since the reducers add in the same order"
            )


def _last_loss(outcome: Outcome) -> float:
    return statistics.fmean(outcome.losses[-len(outcome.blocks[-1]) :])
