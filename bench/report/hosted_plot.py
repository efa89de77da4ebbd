"""Plots the time over the number of dedicated reducers, where the workers host reducers, too."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.report.results import HEADERS, REDUCERS, Run, Series
from bench.report.table import short_size
from reducer.shares import least_time

_OURS, _GLOO, _ALONE = "#0b6e4f", "#c8553d", "#6c6f7d"
_PANEL = (5.2, 3.9)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write a PNG with one panel for each number of workers: measured times and the least times.

    Every run must have hosted reducers, equal NICs and one size.
    """
    groups: dict[int, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.series[0].topology.workers, []).append(run)
    figure = Figure(figsize=(len(groups) * _PANEL[0], _PANEL[1]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(groups), squeeze=False).flat
    for axes, (workers, of_workers) in zip(panels, sorted(groups.items()), strict=True):
        _draw_panel(axes, workers, of_workers)
    commits = sorted({run.context["commit"] for run in runs})
    figure.text(0.995, 0.003, f"commit {', '.join(commits)}", ha="right", size=6, color="gray")
    figure.savefig(path, dpi=130)


def _draw_panel(axes: Axes, workers: int, runs: Sequence[Run]) -> None:
    ours = _series(runs, REDUCERS)
    counts = range(workers + 1)
    least = [HEADERS * float(_least(workers, count)) for count in counts]
    axes.plot(counts, least, color=_OURS, lw=1.2, ls=":", label="least time, formula x 1.045")
    alone = [(count, HEADERS * workers / count) for count in counts if count]
    axes.plot(*zip(*alone, strict=True), color=_ALONE, lw=1.2, ls="--", label="dedicated alone")
    _points(axes, ours, _OURS, "o", "hosted and dedicated reducers")
    _points(axes, _series(runs, "gloo"), _GLOO, "s", "gloo, in the same runs")
    axes.set_ylim(0.9, 1.15 * max(least[0], *(s.to_line or 0.0 for s in ours)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("dedicated reducers")
    axes.set_ylabel("time / (N / BW)")
    first = ours[0]
    at = first.topology
    axes.set_title(
        f"{workers} workers, {at.rate} NICs, {short_size(first.size)} of float32", size=10
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7.5, loc="lower left")


def _points(axes: Axes, found: Sequence[Series], color: str, marker: str, label: str) -> None:
    """Medians, with whiskers from the least to the longest time."""
    counts = [series.topology.reducers for series in found]
    medians = [series.to_line or 0.0 for series in found]
    axes.plot(counts, medians, color=color, marker=marker, ms=5, lw=0, label=label)
    for count, series, median in zip(counts, found, medians, strict=True):
        low, _, _, high = (median * second / series.median for second in series.spread)
        axes.vlines(count, low, high, color=color, lw=1)
        if series.contender == REDUCERS:
            axes.annotate(
                f"{median:.2f}", (count, median), (0, 7), textcoords="offset points", ha="center",
                size=8, color=color,
            )  # fmt: skip


def _series(runs: Sequence[Run], contender: str) -> list[Series]:
    found = [s for run in runs for s in run.series if s.contender == contender]
    return sorted(found, key=lambda series: series.topology.reducers)


def _least(workers: int, reducers: int) -> Fraction:
    return least_time(workers, Fraction(1), Fraction(workers), Fraction(reducers))
