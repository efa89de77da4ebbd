"""Steps of the optimizers on one core: the native kernels beside the NumPy kernels.

Both sides take the same step on copies of the same arrays, in turns. The rate counts the bytes of
the parameters; a step of Adam reads or writes 7 times as many bytes in memory, of SGD with momentum
and of Adagrad 5 times. The arrays are compared bit for bit before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.machine import facts
from reducer.kernels import KernelSet, load
from reducer.optimizers import SGD, Adagrad, Adam, AdamW, NoOptimizer, Optimizer

Arrays = list[npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    """``least``: GB/s that the native kernels must reach, ``gain``: the multiple of NumPy's rate;
    0 where there is no bar."""

    name: str
    optimizer: Optimizer
    least: float = 0.0
    gain: float = 0.0


CASES = (
    Case("none", NoOptimizer()),
    Case("sgd", SGD(1e-3, convention="torch")),
    Case("sgd, momentum", SGD(1e-3, convention="torch", momentum=0.9), least=4.0),
    Case("adagrad", Adagrad(1e-3, convention="torch"), least=5.0),
    Case("adam", Adam(1e-3, convention="torch"), least=3.0, gain=4.0),
    Case("adamw", AdamW(1e-3, convention="torch")),
)


@dataclass(frozen=True)
class Turn:
    """One step of one side."""

    case: str
    side: str
    seconds: float
    bytes: int

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds / 1e9


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("kernels", help="steps of the optimizers, native beside NumPy")
    parser.add_argument("--mib", type=int, default=64, help="of the parameters")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file that the results are appended to")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    context = facts()
    lines: list[dict[str, object]] = [{"what": "context", **context}]
    print(f"{options.mib} MiB of parameters; {context['cpu']}, load {context['load'][0]}")
    print(HEADER)
    for case in CASES:
        turns = list(measure(case, options.mib << 18, options.warmup, options.repeats))
        lines += [{"what": "kernel", **asdict(turn)} for turn in turns]
        print(format_row(case, turns), flush=True)
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def measure(case: Case, count: int, warmup: int, repeats: int) -> Iterator[Turn]:
    """``repeats`` turns of each side, after ``warmup`` that are not kept."""
    sides = {"native": load("native"), "numpy": load("numpy")}
    arrays = _arrays(case.optimizer, count)
    copies = {"native": arrays, "numpy": [array.copy() for array in arrays]}
    for number in range(warmup + repeats):
        seconds = {}
        for side in sides if number % 2 else reversed(sides):
            start = time.perf_counter()
            _step(sides[side], case.optimizer, number + 1, copies[side])
            seconds[side] = time.perf_counter() - start
        _compare(case, copies["native"], copies["numpy"])
        if number >= warmup:
            yield from (Turn(case.name, side, seconds[side], 4 * count) for side in sides)


def _arrays(optimizer: Optimizer, count: int) -> Arrays:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(count, np.float32) for _ in range(2)]
    return arrays + [np.full(count, slot.initial, np.float32) for slot in optimizer.slots]


def _step(kernels: KernelSet, optimizer: Optimizer, step: int, arrays: Arrays) -> None:
    parameters, gradient, *slots = (array.data for array in arrays)
    scalars = optimizer.scalars(step)
    flags = kernels.apply(optimizer.rule, arrays[0].size, parameters, gradient, slots, scalars)
    assert flags == 0


def _compare(case: Case, ours: Arrays, theirs: Arrays) -> None:
    for one, other in zip(ours, theirs, strict=True):
        different = np.count_nonzero(one.view(np.uint32) != other.view(np.uint32))
        assert not different, f"{case.name}: {different} of {one.size} elements differ"


HEADER = "GB/s of parameters    native   least    most   NumPy  ratio  bar"


def format_row(case: Case, turns: Sequence[Turn]) -> str:
    """The median rates, the ratio of the median times, and the verdict."""
    native, numpy = (
        [turn.rate for turn in turns if turn.side == side] for side in ("native", "numpy")
    )
    rate = statistics.median(native)
    ratio = rate / statistics.median(numpy)
    return (
        f"{case.name:<20} {rate:>7.2f} {min(native):>7.2f} {max(native):>7.2f} "
        f"{statistics.median(numpy):>7.2f} {ratio:>6.1f}  {_verdict(case, rate, ratio)}"
    ).rstrip()


def _verdict(case: Case, rate: float, ratio: float) -> str:
    if not case.least:
        return ""
    bar = f"{case.least:g} GB/s" + (f" and {case.gain:g}x" if case.gain else "")
    return f"{bar}: {'met' if rate >= case.least and ratio >= case.gain else 'MISSED'}"
