"""Plots of runs: time relative to the time that a NIC needs, by size and for the largest cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from bench.report.results import HEADERS, REDUCERS, Run, Series
from bench.report.table import describe, short_size, short_type

_COLORS = {
    REDUCERS: "#0b6e4f",
    "gloo": "#c8553d",
    "mpi": "#6c6f7d",
    "plugin": "#3a5a9b",
    "elastic": "#9b3a7d",
}
_MARKERS = {REDUCERS: "o", "gloo": "s", "mpi": "^", "plugin": "D", "elastic": "v"}
# The least number of sizes for a curve.
_LEAST_POINTS = 3
_PANEL = (6.0, 3.8)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write a PNG with one panel for each run: curves by size, or bars if there are few sizes."""
    measured = [run for run in runs if run.series]
    curves = [run for run in measured if len(_sizes(run)) >= _LEAST_POINTS]
    bars = [run for run in measured if run not in curves and run.series[0].to_line is not None]
    panels = len(curves) + bool(bars)
    if not panels:
        return
    columns = min(2, panels)
    rows = -(-panels // columns)
    size = (columns * _PANEL[0], rows * _PANEL[1])
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for run, panel in zip(curves, axes, strict=False):
        _draw_curves(run, panel)
    if bars:
        _draw_bars(bars, axes[len(curves)])
    for panel in axes[panels:]:
        panel.remove()
    commits = sorted({run.context["commit"] for run in measured})
    figure.text(0.995, 0.003, f"commit {', '.join(commits)}", ha="right", size=6, color="gray")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_curves(run: Run, axes: Axes) -> None:
    """Time by size for fp32, with N/BW if a NIC limits."""
    limited = run.series[0].to_line is not None
    for contender in run.contenders:
        points = [s for s in run.series if s.contender == contender and short_type(s) == "fp32"]
        _draw_curve(run, sorted(points, key=lambda s: s.size), axes)
    if limited:
        axes.axhline(HEADERS, color="black", lw=0.8, ls=":", label="line rate, headers included")
    axes.set(xscale="log", yscale="log", xlabel="bytes of the array, fp32")
    axes.set_ylabel("time / (N / BW)" if limited else "time, ms")
    axes.set_title(f"{describe(run.series[0].topology)}; hollow: short of cores", size=9)
    axes.set_xticks(_sizes(run), [short_size(size) for size in _sizes(run)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(_label_minor))
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_curve(run: Run, points: Sequence[Series], axes: Axes) -> None:
    """Medians, with a band from p25 to p75."""
    if not points:
        return
    limited = points[0].to_line is not None
    name, color = points[0].contender, _COLORS[points[0].contender]
    sizes, heights = [s.size for s in points], [_height(s, limited) for s in points]
    axes.plot(sizes, heights, label=name, color=color)
    for x, y, series in zip(sizes, heights, points, strict=True):
        face = "white" if run.starves(series) else color
        axes.plot(x, y, marker=_MARKERS[name], markersize=5, mec=color, mfc=face)
    quartiles = [
        [value / s.median * height for value in s.spread[1:3]]
        for s, height in zip(points, heights, strict=True)
    ]
    low, high = zip(*quartiles, strict=True)
    axes.fill_between(sizes, low, high, color=color, alpha=0.2, lw=0)


def _draw_bars(runs: Sequence[Run], axes: Axes) -> None:
    """Time / (N/BW) of the largest array of each type of each run; whiskers from min to max."""
    groups = [(run, case) for run in runs for case in _largest_cases(run)]
    for at, (run, case) in enumerate(groups):
        of_case = [s for s in run.series if s.case == case]
        width = 0.8 / len(of_case)
        for number, series in enumerate(of_case):
            _draw_bar(series, at - 0.4 + (number + 0.5) * width, width * 0.92, axes)
    axes.set_xticks(range(len(groups)), [_name_bar(run, case) for run, case in groups], size=7)
    axes.set_ylabel("time / (N / BW)")
    axes.set_title("line: the least time that the NICs need; whiskers: min to max", size=9)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    names = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(names.values(), names.keys(), fontsize=8, ncols=len(names), loc="upper left")


def _draw_bar(series: Series, x: float, width: float, axes: Axes) -> None:
    top, name = _height(series, True), series.contender
    by = series.median / top
    low, _, _, high = series.spread
    axes.bar(x, top, width, color=_COLORS[name], label=name)
    axes.vlines(x, low / by, high / by, color="black", lw=0.8)
    axes.hlines((series.bound or 0.0) / by, x - width / 2, x + width / 2, color="black", lw=1.5)
    axes.text(x, high / by, f"{top:.2f}", ha="center", va="bottom", size=7)


def _largest_cases(run: Run) -> list[tuple[str, str, int]]:
    """The largest size of each type."""
    largest: dict[tuple[str, str], int] = {}
    for dtype, wire_dtype, size in (series.case for series in run.series):
        largest[dtype, wire_dtype] = max(size, largest.get((dtype, wire_dtype), 0))
    return [(*types, size) for types, size in largest.items()]


def _name_bar(run: Run, case: tuple[str, str, int]) -> str:
    series = next(s for s in run.series if s.case == case)
    at = series.topology
    rate = at.rate if at.rate == at.reducer_rate else f"{at.rate}\nagainst {at.reducer_rate}"
    return f"{at.workers} + {at.reducers}, {rate}\n{short_size(series.size)} {short_type(series)}"


def _height(series: Series, limited: bool) -> float:
    return (series.to_line or 0.0) if limited else series.median * 1000


def _sizes(run: Run) -> list[int]:
    return sorted({series.size for series in run.series if short_type(series) == "fp32"})


def _label_minor(value: float, position: object) -> str:
    """1, 2 and 5 of each decade."""
    digit = value / 10 ** len(f"{int(value)}") * 10 if value >= 1 else value * 10
    return f"{value:g}" if round(digit, 6) in (2, 5) else ""
