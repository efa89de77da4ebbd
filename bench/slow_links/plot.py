"""The picture: loss over the bytes that the reducers counted, and over minutes at the link.

python -m bench.slow_links.plot bench/results/slow-links-text.jsonl slow-links.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.slow_links.results import LINK, Curve

_MARKERS = "os^Dv<>P"


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Write a PNG."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for number, curve in enumerate(curves):
        style = {"color": f"C{number}", "marker": _MARKERS[number % len(_MARKERS)], "ms": 4}
        losses = [point.loss for point in curve.points]
        sent = [point.bytes / 1e9 for point in curve.points]
        left.plot(sent, losses, label=curve.method, **style)
        right.plot([seconds / 60 for seconds in curve.seconds], losses, **style)
    _name(left, "GB received and sent by the reducers")
    rate = LINK.rate.replace("mbit", " Mbit/s")
    _name(right, f"minutes at {rate} and {LINK.rtt * 1e3:.0f} ms")
    left.set_ylabel("loss of the validation text, nats a byte")
    left.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def _name(axes: Axes, text: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(text)
    axes.grid(visible=True, which="both", lw=0.3)
