"""The speed relative to gloo, as one bar for each situation: the picture of README.md.

python -m bench.report.gains --plot bench/results/gains.png     # from the files of bench/results
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.report.results import REDUCERS, Run, load
from bench.training.case import from_json
from bench.training.summary import summarize

RESULTS = Path(__file__).parents[1] / "results"
_OURS, _EVEN, _WORSE = "#0b6e4f", "#6c6f7d", "#c8553d"
_SIZE = 64 << 20


@dataclass(frozen=True)
class Gain:
    """How many times as fast as gloo, measured on the same hosts in the same run."""

    label: str
    value: float


def gains(folder: Path = RESULTS) -> list[Gain]:
    """The gains of the committed results; of repeated measurements, the median."""
    return [
        Gain("DDP training, 8 workers + 8 reducers, 400 Mbit/s", _training(folder, 8, "400mbit")),
        Gain("DDP training, 4 workers + 4 reducers, 400 Mbit/s", _training(folder, 4, "400mbit")),
        Gain("all-reduce, 8 + 8, 500 Mbit/s", _all_reduce(folder, "allreduce-8+8-500mbit")),
        Gain("all-reduce, 4 + 4, 1 Gbit/s", _all_reduce(folder, "allreduce-4+4-1gbit")),
        Gain(
            "all-reduce, 4 workers that host the reducers",
            _all_reduce(folder, "allreduce-hosted", dedicated=0),
        ),
        Gain(
            "all-reduce on one machine, no NIC between",
            _all_reduce(folder, "allreduce-loopback"),
        ),
    ]


def _all_reduce(folder: Path, name: str, dedicated: int | None = None) -> float:
    runs = load(folder / f"{name}.jsonl")
    return statistics.median(_of_runs(runs, dedicated))


def _of_runs(runs: list[Run], dedicated: int | None) -> Iterator[float]:
    for run in runs:
        for series in run.series:
            at = series.topology
            wanted = series.contender == REDUCERS and series.case == ("float32", "float32", _SIZE)
            if wanted and dedicated in (None, at.reducers) and at.workers <= 8:
                speed = run.speed_over(series, "gloo")
                if speed is not None:
                    yield speed


def _training(folder: Path, workers: int, rate: str) -> float:
    lines = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    of_case = [
        line
        for line in lines
        if line["what"] == "training"
        and (line["case"]["workers"], line["case"]["rate"]) == (workers, rate)
    ]
    rows = summarize(from_json(of_case[0]["case"]), of_case)
    return next(row.speedup for row in rows if row.name == REDUCERS)


def draw(found: list[Gain], path: Path) -> None:
    """Write a PNG with a horizontal bar for each gain."""
    figure = Figure(figsize=(8.2, 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for at, gain in enumerate(reversed(found)):
        color = _OURS if gain.value >= 1.05 else _EVEN if gain.value >= 0.95 else _WORSE
        axes.barh(at, gain.value, 0.66, color=color)
        axes.text(
            gain.value - 0.02, at, f"{gain.value:.2f} x", ha="right", va="center", color="white"
        )
    axes.set_yticks(range(len(found)), [gain.label for gain in reversed(found)], size=9)
    axes.axvline(1.0, color="black", lw=1.0)
    axes.set_xlim(0, max(gain.value for gain in found) * 1.15)
    axes.set_xticks([0, 0.5, 1, 1.5], ["0", "0.5", "1 = gloo", "1.5"])
    axes.set_title("Times as fast as PyTorch's gloo on the same hosts", size=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report.gains", description=__doc__)
    parser.add_argument("--plot", type=Path, required=True, help="PNG file to draw into")
    options = parser.parse_args()
    found = gains()
    for gain in found:
        print(f"{gain.value:5.2f}  {gain.label}")
    draw(found, options.plot)


if __name__ == "__main__":
    main()
