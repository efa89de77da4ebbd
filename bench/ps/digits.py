"""Trains on handwritten digits over real reducers. Workers sleep for the time of each gradient.

Each case has workers of its own and a job of its own. A gradient takes one *unit* (--unit-ms). A
gradient of the last worker takes ``slow`` units. A simulation of these cases gave the bars.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.fleet import Fleet, FleetError, ThisMachine
from bench.machine import facts, load
from bench.ps import digits_net
from bench.ps.cluster import HOST, Worker
from reducer.optimizers import SGD, Adagrad, Optimizer, to_fields

WORKERS = 4
PATIENCE = 120.0  # seconds for a line of a worker
GOAL = 0.94
UNBOUNDED = 1_000_000

MOMENTUM = SGD(0.1, convention="torch", momentum=0.9)


@dataclass(frozen=True)
class Case:
    """``units``: how long the training takes. ``slow``: units of a gradient of the last worker.

    ``stalls``: the share of all gradients that take 20 units, each on its own.
    """

    name: str
    optimizer: Optimizer
    mode: tuple[str, Mapping[str, Any]]
    slow: float = 1.0
    skewed: bool = False
    units: int = 600
    stalls: float = 0.0


@dataclass(frozen=True)
class Result:
    """``goal_seconds``: until worker 0 first had the accuracy GOAL; None: never.

    ``counts``: pushes of all workers by outcome.
    """

    case: str
    accuracy: float
    goal_seconds: float | None
    version: int
    staleness: float
    warned: bool
    seed: int = 0
    counts: dict[str, int] = field(default_factory=dict)


PLAIN = SGD(0.1, convention="torch")


def _stalling(bound: int) -> Case:
    """A twentieth of the gradients stalls, and nobody runs more than ``bound`` clocks ahead."""
    return Case(f"stalls: ssp {bound}", PLAIN, ("ssp", {"bound": bound}), stalls=0.05)


CASES = (
    Case("async sgd 0.025/0.9", SGD(0.025, convention="torch", momentum=0.9), ("async", {})),
    Case("async sgd 0.1/0", PLAIN, ("async", {})),
    Case("async adagrad 0.05", Adagrad(0.05, convention="tf"), ("async", {})),
    Case("async sgd 0.1/0.9", MOMENTUM, ("async", {})),
    Case("slow: 4 of 4", MOMENTUM, ("sync", {}), slow=5),
    Case("slow: 3 of 4, drop", MOMENTUM, ("k of n", {"k": 3, "bound": UNBOUNDED}), slow=5),
    Case("slow: 3 of 4, drop, m = 4", MOMENTUM, ("k of n", {"k": 3}), slow=5),
    Case("skewed: 3 of 4, carry, m = 4", MOMENTUM, ("k of n", {"k": 3, "late": "carry"}), 5, True),
    Case("skewed: 3 of 4, drop", MOMENTUM, ("k of n", {"k": 3, "bound": UNBOUNDED}), 5, True),
    *map(_stalling, (0, 1, 3, 10)),
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("digits", help="trainings whose workers are late, or not in step")
    parser.add_argument("--unit-ms", type=float, default=100.0, help="that a gradient takes")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of the trainings; bars are for the means"
    )
    parser.add_argument(
        "--only", action="append", help="cases whose name has this text; may be repeated"
    )
    parser.add_argument("--json", type=Path, help="file that the results are appended to")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    context = facts()
    print(f"units of {options.unit_ms:g} ms; {context['cpu']}, load {context['load'][0]}")
    print(HEADER)
    lines: list[dict[str, object]] = [{"what": "context", **context, "unit_ms": options.unit_ms}]
    results = {}
    cases = [case for case in CASES if any(part in case.name for part in options.only or [""])]
    try:
        for case in cases:
            found = []
            for seed in options.seeds:
                found.append(measure(case, options.unit_ms / 1e3, seed))
                lines.append({"what": "digits", **asdict(found[-1])})
                print(format_row(found[-1]), flush=True)
            results[case.name] = mean(found)
    except FleetError as error:
        sys.exit(f"bench.ps digits: {error}")
    lines.append({"what": "end", "load": load()})
    print("\n".join([*verdicts(results), f"load {load()[0]} afterwards"]))
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def measure(case: Case, unit: float, seed: int) -> Result:
    """One training. ``unit``: seconds. Raises FleetError."""
    with tempfile.TemporaryDirectory() as folder, Fleet(ThisMachine()) as fleet:
        data = Path(folder) / "digits.npz"
        digits_net.write_data(data)
        setup = {
            "addresses": fleet.start_reducers([HOST, HOST], "--insecure"),
            "job": "digits",
            "data": str(data),
            "workers": WORKERS,
            "optimizer": to_fields(case.optimizer),
            "mode": case.mode,
            "unit": unit,
            "slow": case.slow,
            "skewed": case.skewed,
            "stalls": case.stalls,
            "seconds": case.units * unit,
            "seed": seed,
        }
        workers = [_start_worker(fleet, {**setup, "worker": number}) for number in range(WORKERS)]
        for worker in workers:
            worker.take(PATIENCE)
        for worker in workers:
            worker.order("begin")
        patience = PATIENCE + case.units * unit
        return _summarize(
            case.name, seed, [list(_until_end(worker, patience)) for worker in workers]
        )


def _start_worker(fleet: Fleet, setup: Mapping[str, Any]) -> Worker:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "bench.ps.digits_worker"]
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    worker = Worker(fleet.start(HOST, command, env, stdin=pipe, stdout=pipe))
    worker.order(json.dumps(setup))
    return worker


def _until_end(worker: Worker, patience: float) -> Iterable[dict[str, Any]]:
    while True:
        line = worker.take(patience)
        yield line
        if "end" in line:
            return


def _summarize(name: str, seed: int, lines: list[list[dict[str, Any]]]) -> Result:
    seen, ends = lines[0][:-1], [of_worker[-1] for of_worker in lines]
    outcomes = ("applied", "dropped", "carried", "partial", "refused")
    return Result(
        name,
        accuracy=seen[-1]["accuracy"],
        goal_seconds=next((line["at"] for line in seen if line["accuracy"] >= GOAL), None),
        version=seen[-1]["version"],
        staleness=sum(end["staleness"] for end in ends) / len(ends),
        warned=ends[0]["warned"],
        seed=seed,
        counts={outcome: sum(end[outcome] for end in ends) for outcome in outcomes},
    )


def mean(results: Sequence[Result]) -> Result:
    """The accuracy and the time of several trainings. The time is None if one never had GOAL."""
    goals = [result.goal_seconds for result in results if result.goal_seconds is not None]
    return replace(
        results[0],
        accuracy=fmean(result.accuracy for result in results),
        goal_seconds=fmean(goals) if len(goals) == len(results) else None,
    )


HEADER = "case                            accuracy   94 % after  updates  staleness  pushes"


def format_row(result: Result) -> str:
    goal = "never" if result.goal_seconds is None else f"{result.goal_seconds:.2f} s"
    pushes = ", ".join(f"{count} {name}" for name, count in result.counts.items() if count)
    return (
        f"{result.case:<30} {result.accuracy:>8.1%} {goal:>12} {result.version:>8} "
        f"{result.staleness:>10.2f}  {pushes}{', warned' if result.warned else ''}"
    )


Results = Mapping[str, Result]


def _at_least(name: str, least: float) -> Callable[[Results], bool]:
    return lambda results: results[name].accuracy >= least


def _at_most(name: str, most: float) -> Callable[[Results], bool]:
    return lambda results: results[name].accuracy <= most


def _is_sooner(name: str, other: str, times: float) -> Callable[[Results], bool]:
    """Whether the case reaches GOAL so many times sooner than the other one."""

    def is_met(results: Results) -> bool:
        soon, late = results[name].goal_seconds, results[other].goal_seconds
        return soon is not None and (late is None or late >= times * soon)

    return is_met


def _is_as_good(results: Results) -> bool:
    return results["slow: 3 of 4, drop"].accuracy >= results["slow: 4 of 4"].accuracy - 0.01


BARS: tuple[tuple[str, Callable[[Results], bool]], ...] = (
    ("async sgd 0.025/0.9 >= 96 %", _at_least("async sgd 0.025/0.9", 0.96)),
    ("async sgd 0.1/0 >= 96 %", _at_least("async sgd 0.1/0", 0.96)),
    ("async adagrad 0.05 >= 96 %", _at_least("async adagrad 0.05", 0.96)),
    ("control: async sgd 0.1/0.9 <= 30 %", _at_most("async sgd 0.1/0.9", 0.30)),
    ("control: it was warned of", lambda results: results["async sgd 0.1/0.9"].warned),
    (
        "3 of 4 reaches 94 % >= 3x sooner than 4 of 4",
        _is_sooner("slow: 3 of 4, drop", "slow: 4 of 4", 3),
    ),
    ("3 of 4 ends within 1 point of 4 of 4", _is_as_good),
    ("skewed, carry, m = 4 >= 95 %", _at_least("skewed: 3 of 4, carry, m = 4", 0.95)),
    ("control: skewed, drop without bound <= 85 %", _at_most("skewed: 3 of 4, drop", 0.85)),
    (
        "stalls: ssp 10 reaches 94 % >= 1.6x sooner than ssp 0",
        _is_sooner("stalls: ssp 10", "stalls: ssp 0", 1.6),
    ),
)


def verdicts(results: Results) -> Iterable[str]:
    """A line for each bar whose cases have run."""
    for text, is_met in BARS:
        try:
            yield f"{text}: {'met' if is_met(results) else 'MISSED'}"
        except KeyError:
            continue
