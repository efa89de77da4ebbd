"""The demo's picture: step times, samples/s, and losses over the time of training."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reducer_tools.demo.case import Case
from reducer_tools.demo.messages import WARMUP
from reducer_tools.demo.report import samples_per_second
from reducer_tools.demo.summary import Run

_COLORS = {"reducers": "#0b6e4f", "gloo": "#c8553d"}
_MARKERS = {"reducers": "o", "gloo": "s"}


def draw(case: Case, runs: Mapping[str, Run], path: Path) -> None:
    """Write a PNG."""
    figure = Figure(figsize=(12.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    steps, samples, losses = figure.subplots(1, 3, width_ratios=(1.2, 0.8, 1.2))
    _draw_steps(steps, runs)
    _draw_samples(samples, case, runs)
    _draw_losses(losses, runs)
    figure.suptitle(_title(case), fontsize=11)
    figure.savefig(path, dpi=130)


def _title(case: Case) -> str:
    where = "over loopback" if case.obstacle else f"NICs of {case.rate_in_words}"
    return f"DDP training, {case.workers} workers: {case.reducers} reducers beside gloo, {where}"


def _draw_steps(axes: Axes, runs: Mapping[str, Run]) -> None:
    for name, run in runs.items():
        numbers = range(WARMUP + 1, len(run.seconds) + 1)
        times = [seconds * 1e3 for seconds in run.seconds[WARMUP:]]
        color, label = _COLORS[name], f"{name}: p50 {run.step * 1e3:.0f} ms"
        axes.plot(numbers, times, label=label, color=color, marker=_MARKERS[name], ms=4, lw=0.8)
        axes.axhline(run.step * 1e3, color=color, lw=0.8, ls=":")
    axes.set(xlabel="step", ylabel="milliseconds", ylim=(0, None))
    _finish(axes, "time of a step")


def _draw_samples(axes: Axes, case: Case, runs: Mapping[str, Run]) -> None:
    rates = {name: samples_per_second(case, run) for name, run in runs.items()}
    for place, (name, rate) in enumerate(rates.items()):
        axes.bar(name, rate, width=0.6, color=_COLORS[name])
        speedup = f"\n{rate / rates['gloo']:.2f} x gloo" if name != "gloo" else ""
        text = f"\n{rate:,.0f}{speedup}"
        axes.text(place, rate, text, ha="center", va="top", size=9, color="white")
    top = max(rates.values())
    if not case.obstacle:
        most = rates["gloo"] * case.most_gain
        label = f"the bytes allow {case.most_gain:.2f} x"
        axes.axhline(most, color="black", lw=0.8, ls=":", label=label)
        top = max(top, most)
    axes.set(ylabel="samples/s of all workers", ylim=(0, top * 1.25))
    _finish(axes, "rate of training")


def _draw_losses(axes: Axes, runs: Mapping[str, Run]) -> None:
    for name, run in runs.items():
        ends = list(itertools.accumulate(run.seconds))
        axes.plot(ends, run.losses, color=_COLORS[name], lw=1.6, label=f"{name}: {ends[-1]:.1f} s")
        axes.plot(ends[-1], run.losses[-1], color=_COLORS[name], marker=_MARKERS[name], ms=5)
    axes.set(xlabel="seconds of training", ylabel="loss, mean of the workers", xlim=(0, None))
    _finish(axes, "loss")


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, size=10)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
