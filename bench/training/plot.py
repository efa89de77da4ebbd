"""The plot: speed-up over gloo by link rate and number of workers, with the bound of a ring."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.training.case import Case, parse_contender
from bench.training.summary import Line, Row, ring_bound, ring_overhead, summarize
from reducer_tools.netlab import Nic

_MARKERS = "os^Dv"


class _Point(NamedTuple):
    """One contender of one run; ``rate`` in bit/s."""

    rate: float
    bound: float
    row: Row


# Number of workers, size and batch as text, and contender.
_Key = tuple[int, str, str]
_Series = dict[_Key, list[_Point]]


def draw(results: Sequence[tuple[Case, Sequence[Line]]], path: Path) -> None:
    """Write a PNG. Runs over loopback are left out, since they have no rate."""
    series = _series(results)
    figure = Figure(figsize=(8.5, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, workers in enumerate(sorted({workers for workers, *_ in series}, reverse=True)):
        _draw_ceiling(axes, f"C{number}", workers)
        mine = [key for key in series if key[0] == workers]
        for key, marker in zip(mine, itertools.cycle(_MARKERS), strict=False):
            _draw_series(axes, f"C{number}{marker}", key, sorted(series[key]))
    _finish(axes, sorted({point.rate for points in series.values() for point in points}))
    figure.savefig(path, dpi=130)


def _series(results: Sequence[tuple[Case, Sequence[Line]]]) -> _Series:
    series: _Series = {}
    for case, lines in results:
        rows = summarize(case, lines)
        bound = ring_bound(case, lines[0]["gradient_bytes"], rows[0].compute)
        if case.rate is None or bound is None:
            continue
        rate = Nic(case.rate).bits_per_second or 0.0
        size = f"{case.size}, {case.batch} x {case.sequence} tokens"
        for row in rows:
            if parse_contender(row.name).uses_reducers:
                key = (case.workers, size, row.name)
                series.setdefault(key, []).append(_Point(rate, bound, row))
    return series


def _draw_ceiling(axes: Axes, color: str, workers: int) -> None:
    ceiling = ring_overhead(workers)
    claim = ' (Vertex AI claims "+75 %" here)' if workers == 8 else ""
    axes.axhline(ceiling, color=color, ls="--", lw=1)
    axes.annotate(
        f"2(n-1)/n at {workers} workers{claim}: {ceiling:.2f}",
        (1, ceiling),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        color=color,
    )


def _draw_series(axes: Axes, style: str, key: _Key, points: Sequence[_Point]) -> None:
    """Draw medians with the range of blocks, and as a dotted line the bound with computation."""
    workers, size, contender = key
    rates = [point.rate for point in points]
    rows = [point.row for point in points]
    below = [max(row.speedup - row.lowest_speedup, 0) for row in rows]
    above = [max(row.highest_speedup - row.speedup, 0) for row in rows]
    label = f"{contender}, {workers} workers, {size}"
    medians = [row.speedup for row in rows]
    axes.errorbar(rates, medians, (below, above), fmt=f"{style}-", capsize=4, label=label)
    if parse_contender(contender).is_exact:
        axes.plot(rates, [point.bound for point in points], f"{style[:2]}_:", lw=1)


def _finish(axes: Axes, rates: Sequence[float]) -> None:
    axes.axhline(1.0, color="black", lw=1)
    axes.plot([], [], color="gray", ls=":", label="the ceiling with this computation beside it")
    axes.set_xscale("log")
    axes.set_xticks(rates, [_in_words(rate) for rate in rates])
    axes.minorticks_off()
    axes.set_ylim(min(0.75, axes.get_ylim()[0]), axes.get_ylim()[1] + 0.05)
    axes.set_xlabel("NIC of every worker and every reducer")
    axes.set_ylabel("samples/s, gloo's ring = 1")
    axes.set_title("DDP training over reducers, as many as workers, beside gloo in the same run")
    axes.legend(loc="lower left")


def _in_words(bits: float) -> str:
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
