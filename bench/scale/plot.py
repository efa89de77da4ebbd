"""The picture: time relative to N / BW against the number of workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from bench.scale.network import PACKET_PAYLOAD, wire_bytes
from bench.scale.report import format_bytes
from bench.scale.sweep import Row

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

HEADERS = wire_bytes(PACKET_PAYLOAD) / PACKET_PAYLOAD

TICKS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 16, 32, 64)


def plot(rows: Sequence[Row], path: Path) -> None:
    """One panel for each size; both axes are logarithmic."""
    sizes = sorted({row.case.round_bytes for row in rows})
    figure, panels = pyplot.subplots(
        1, len(sizes), figsize=(5.5 * len(sizes), 4.6), sharey=True, squeeze=False
    )
    for axes, size in zip(panels[0], sizes, strict=True):
        _panel(axes, [row for row in rows if row.case.round_bytes == size])
        axes.set_title(format_bytes(size))
    panels[0][0].set_ylabel("time of an all-reduce / (N / BW)")
    panels[0][0].legend()
    case = rows[0].case
    price = case.lane_prices
    figure.suptitle(
        f"simulated: real core, modelled network ({case.rate * 8 / 1e9:g} Gbit/s) and CPU "
        f"({price.s_per_gb:g} s/GB, {price.frame * 1e6:g} \u00b5s a frame)",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    workers = [row.case.workers for row in rows]
    ring = [2 * (count - 1) / count * HEADERS for count in workers]
    for label, style, outcomes in (
        ("default chunk table", "s--", [row.paid for row in rows]),
        ("best chunk size", "o-", [row.best for row in rows]),
    ):
        times = [
            math.nan if outcome.refused else row.relative(outcome)
            for row, outcome in zip(rows, outcomes, strict=True)
        ]
        axes.plot(workers, times, style, label=label)
    axes.plot(workers, ring, ":", color="gray", label="least of any ring")
    axes.axhline(HEADERS, color="black", linewidth=0.8, label="headers alone")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(workers, [str(count) for count in workers])
    most = axes.get_ylim()[1]
    ticks = [tick for tick in TICKS if tick <= most]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("workers = reducers")
    axes.grid(alpha=0.3)
