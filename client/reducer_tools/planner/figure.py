"""Draws a plan: times by number of reducers, and the prices below which they pay off."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reducer_tools.planner.plan import Choice, Plan
from reducer_tools.planner.text import format_bytes, format_price, format_seconds

_REDUCERS, _RING, _OPTIMUM = "#0b6e4f", "#c8553d", "#6c6f7d"
_MOST_POINTS = 240  # of a curve
# The curves go on beyond the needed number of reducers, to show that more gain nothing.
_BEYOND = 1.25
_MOST_DOTS = 40
# The upper end of the time axis. Very few reducers may take ten times as long as a ring, and the
# figure cuts off those times.
_HEADROOM = 1.9


def draw(plan: Plan) -> Figure:
    """Draw two panels, times and prices, over the number of reducers."""
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    curve = _curve(plan)
    _draw_times(left, plan, curve)
    _draw_prices(right, plan, curve)
    for axes in (left, right):
        axes.set_xlabel(f"reducers of {plan.cluster.reducer_gbps:g} Gbit/s")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(0, curve[-1].reducers)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    figure.suptitle(_title(plan), fontsize=11)
    return figure


def _curve(plan: Plan) -> list[Choice]:
    most = max(plan.needed + 1, int(plan.needed * _BEYOND), plan.chosen.reducers)
    counts = {*range(1, most + 1, -(-most // _MOST_POINTS)), most}
    counts |= {plan.needed, plan.chosen.reducers}
    return [plan.cluster.choice(count) for count in sorted(counts)]


def _draw_times(axes: Axes, plan: Plan, curve: Sequence[Choice]) -> None:
    counts, ring = [choice.reducers for choice in curve], plan.cluster.ring_seconds()
    scale, unit = _unit(ring or plan.chosen.allreduce_seconds)
    times = [choice.allreduce_seconds * scale for choice in curve]
    optimum = [choice.optimum_seconds * scale for choice in curve]
    axes.axhline(ring * scale, color=_RING, lw=1.6, label=f"ring: {format_seconds(ring)}")
    dots = "o" if len(curve) <= _MOST_DOTS else ""
    axes.plot(counts, times, color=_REDUCERS, lw=1.8, marker=dots, ms=3.5, label="reducers")
    axes.plot(counts, optimum, color=_OPTIMUM, lw=1.2, ls=":", label="optimum: workers sum, too")
    top = max(ring * scale, plan.chosen.allreduce_seconds * scale) * _HEADROOM
    axes.set_ylim(0, top)
    axes.set_ylabel(f"all-reduce, {unit}")
    axes.set_title("time of an all-reduce", size=10)
    _shade(axes, plan, curve[-1].reducers)
    _mark(
        axes,
        (plan.chosen.reducers, plan.chosen.allreduce_seconds * scale),
        f"{plan.chosen.reducers}: {format_seconds(plan.chosen.allreduce_seconds)}, "
        f"{plan.chosen.speedup:.2f}x",
        above=False,
    )
    axes.legend(fontsize=8, loc="upper right")


def _shade(axes: Axes, plan: Plan, most: int) -> None:
    """Shade the range in which a ring wins, which is everything for one or two workers."""
    end = most if plan.to_beat_ring is None else plan.to_beat_ring - 0.5
    if end < 1:
        return
    axes.axvspan(0, end, color=_RING, alpha=0.07, lw=0)
    text = "a ring is as fast or faster"
    place = axes.get_xaxis_transform()
    axes.text(end / 2, 0.03, text, ha="center", size=8, color=_RING, transform=place)


def _draw_prices(axes: Axes, plan: Plan, curve: Sequence[Choice]) -> None:
    prices, step = plan.cluster.prices, plan.cluster.step
    scale = 1.0 if prices.worker is None else prices.worker
    counts = [choice.reducers for choice in curve]
    limits = [max(0.0, choice.break_even_ratio) * scale for choice in curve]
    dots = "o" if len(curve) <= _MOST_DOTS else ""
    axes.plot(counts, limits, color=_REDUCERS, lw=1.8, marker=dots, ms=3.5)
    axes.fill_between(counts, limits, color=_REDUCERS, alpha=0.12, lw=0, label="reducers pay off")
    if prices.worker is not None and prices.reducer is not None:
        label = f"price of a reducer: {format_price(prices.reducer)}"
        axes.axhline(prices.reducer, color=_RING, lw=1.4, ls="--", label=label)
    at = max(0.0, plan.chosen.break_even_ratio) * scale
    _mark(axes, (plan.chosen.reducers, at), f"{plan.chosen.reducers}: {at:.3g}")
    most = max(limits)
    if prices.worker is not None:
        most = max(most, prices.reducer or 0.0)
    axes.set_ylim(0, most * 1.3 if most > 1e-9 else 1.0)
    axes.set_ylabel("price of a reducer" + (", a worker = 1" if prices.worker is None else ""))
    kind = "of only its all-reduce"
    if step.compute_seconds is not None:
        kind = f"of {format_seconds(plan.cluster.ring_step_seconds())} over a ring"
    axes.set_title(f"price below which reducers pay off, for a step {kind}", size=10)
    axes.legend(fontsize=8, loc="upper right")


def _mark(axes: Axes, at: tuple[float, float], text: str, above: bool = True) -> None:
    axes.plot(*at, "o", color=_REDUCERS, markersize=8, zorder=5)
    shift = (4, 9) if above else (4, -17)
    axes.annotate(text, at, shift, textcoords="offset points", ha="right", size=9, color=_REDUCERS)


def _title(plan: Plan) -> str:
    cluster = plan.cluster
    size = format_bytes(cluster.gradient_bytes)
    return f"{cluster.workers} workers at {cluster.worker_gbps:g} Gbit/s, {size} of gradients each"


def _unit(seconds: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return scale, unit
    return 1e6, "us"
