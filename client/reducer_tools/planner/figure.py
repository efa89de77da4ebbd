"""Draws a plan: times by number of reducers, and the prices below which they pay off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reducer_tools.planner.plan import Choice, Plan
from reducer_tools.planner.text import format_bytes, format_price, format_seconds

_REDUCERS, _RING, _ALONE = "#0b6e4f", "#c8553d", "#6c6f7d"
_MOST_POINTS = 240  # of a curve
# The curves go on beyond the needed number of reducers, to show that more gain nothing.
_BEYOND = 1.25
_MOST_DOTS = 40
# The upper end of the time axis. Very few dedicated reducers alone may take ten times as long as a
# ring, and the figure cuts off those times.
_HEADROOM = 1.9
# The place of the chosen number's label on the time axis, below all curves: no time is below half
# of a ring's.
_LABEL = 0.1


def draw(plan: Plan) -> Figure:
    """Draw two panels, times and prices, over the number of reducers."""
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    curve = _curve(plan)
    _draw_times(left, plan, curve)
    _draw_prices(right, plan, curve)
    for axes in (left, right):
        axes.set_xlabel(f"dedicated reducers of {plan.cluster.reducer_gbps:g} Gbit/s")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(0, curve[-1].reducers)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    figure.suptitle(_title(plan), fontsize=11)
    return figure


def _curve(plan: Plan) -> list[Choice]:
    most = max(plan.needed + 1, int(plan.needed * _BEYOND), plan.chosen.reducers)
    counts = {0, *range(1, most + 1, -(-most // _MOST_POINTS)), most}
    counts |= {plan.needed, plan.chosen.reducers}
    return [plan.cluster.choice(count) for count in sorted(counts)]


def _draw_times(axes: Axes, plan: Plan, curve: Sequence[Choice]) -> None:
    chosen, ring = plan.chosen, plan.cluster.ring_seconds()
    alone = {c.reducers: c.alone_seconds for c in curve if c.alone_seconds is not None}
    longest = ring or min(alone.values())
    scale, unit = _unit(longest)
    axes.axhline(ring * scale, color=_RING, lw=1.6, label=f"ring: {format_seconds(ring)}")
    heights = [seconds * scale for seconds in alone.values()]
    axes.plot(list(alone), heights, color=_ALONE, lw=1.2, ls=":", label="dedicated reducers alone")
    counts = [choice.reducers for choice in curve]
    times = [choice.allreduce_seconds * scale for choice in curve]
    axes.plot(counts, times, label="with hosted reducers", **_style(curve))
    axes.set_ylim(0, longest * scale * _HEADROOM)
    axes.set_ylabel(f"all-reduce, {unit}")
    axes.set_title("time of an all-reduce", size=10)
    place = (chosen.reducers, chosen.allreduce_seconds * scale)
    text = f"{chosen.reducers}: {format_seconds(chosen.allreduce_seconds)}, {chosen.speedup:.2f}x"
    _mark(axes, place, text, longest * scale * _HEADROOM * _LABEL, curve[-1].reducers)
    axes.legend(fontsize=8, loc="upper right")


def _draw_prices(axes: Axes, plan: Plan, curve: Sequence[Choice]) -> None:
    prices, step = plan.cluster.prices, plan.cluster.step
    scale = 1.0 if prices.worker is None else prices.worker
    ratios = [(choice.reducers, choice.break_even_ratio) for choice in curve]
    limits = {count: max(0.0, ratio) * scale for count, ratio in ratios if ratio is not None}
    counts, heights = list(limits), list(limits.values())
    axes.plot(counts, heights, **_style(curve))
    axes.fill_between(counts, heights, color=_REDUCERS, alpha=0.12, lw=0, label="reducers pay off")
    most = max(heights)
    if prices.worker is not None and prices.reducer is not None:
        label = f"price of a reducer: {format_price(prices.reducer)}"
        axes.axhline(prices.reducer, color=_RING, lw=1.4, ls="--", label=label)
        most = max(most, prices.reducer)
    top = most * 1.5 if most > 1e-9 else 1.0
    axes.set_ylim(0, top)
    if plan.chosen.reducers in limits:
        at = limits[plan.chosen.reducers]
        text = f"{plan.chosen.reducers}: {at:.3g}"
        _mark(axes, (plan.chosen.reducers, at), text, at + top * 0.05, curve[-1].reducers)
    axes.set_ylabel("price of a reducer" + (", a worker = 1" if prices.worker is None else ""))
    kind = "of only its all-reduce"
    if step.compute_seconds is not None:
        kind = f"of {format_seconds(plan.cluster.ring_step_seconds())} over a ring"
    axes.set_title(f"price below which reducers pay off, for a step {kind}", size=10)
    axes.legend(fontsize=8, loc="upper right")


def _style(curve: Sequence[Choice]) -> dict[str, Any]:
    dots = "o" if len(curve) <= _MOST_DOTS else ""
    return {"color": _REDUCERS, "lw": 1.8, "marker": dots, "ms": 3.5}


def _mark(axes: Axes, at: tuple[float, float], text: str, height: float, most: int) -> None:
    """Mark the chosen number, with a label at this height and a line between both."""
    axes.plot(*at, "o", color=_REDUCERS, markersize=8, zorder=5, clip_on=False)
    axes.vlines(at[0], height, at[1], color=_REDUCERS, lw=0.8, ls=":")
    side, shift = ("right", -4) if at[0] > most / 2 else ("left", 4)
    place, unit = (at[0], height), "offset points"
    axes.annotate(text, place, (shift, 0), textcoords=unit, ha=side, size=9, color=_REDUCERS)


def _title(plan: Plan) -> str:
    cluster = plan.cluster
    size = format_bytes(cluster.gradient_bytes)
    return f"{cluster.workers} workers at {cluster.worker_gbps:g} Gbit/s, {size} of gradients each"


def _unit(seconds: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return scale, unit
    return 1e6, "us"
