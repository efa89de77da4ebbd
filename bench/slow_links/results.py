"""What a method costs and brings: its curve over bytes and over the time at a slow link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.slow_links.link import Link

LINK = Link("100mbit", 0.030)


class Point(NamedTuple):
    """After a step: the loss of the validation text in nats a byte, and the reducers' counters."""

    step: int
    loss: float
    received: int
    sent: int

    @property
    def bytes(self) -> int:
        return self.received + self.sent


@dataclass(frozen=True)
class Pace:
    """How long a method trains.

    Args:
        compute: seconds of a step without communication.
        exchange: seconds of an exchange at the link, with the work before and after it.
        every: steps between two exchanges of a fragment.
        fragments: which take turns.
        delay: steps that an exchange may take before the worker waits.
    """

    compute: float
    exchange: float
    every: int = 1
    fragments: int = 1
    delay: int = 0

    def seconds(self, steps: int) -> float:
        """Of a training. An exchange costs what its overlap with computing leaves of it.

        DDP overlaps a bucket with the rest of backward; this is not counted, since a small model
        has one bucket.
        """
        overlap = self.delay * self.compute
        waiting = max(0.0, self.exchange - overlap) * self.fragments / self.every
        return steps * (self.compute + waiting)


@dataclass(frozen=True)
class Curve:
    """The training of a method. ``points`` begin after some steps, and end after the last."""

    method: str
    pace: Pace
    points: list[Point]

    @property
    def seconds(self) -> list[float]:
        """The time of each point at the link."""
        return [self.pace.seconds(point.step) for point in self.points]


def join(lines: Iterable[dict[str, Any]]) -> list[Curve]:
    """The curves in the lines of results: each "curve" with the last "pace" of its method."""
    paces, points = {}, {}
    for line in lines:
        if line["what"] == "pace":
            paces[line["method"]] = Pace(**line["pace"])
        if line["what"] == "curve":
            points[line["method"]] = [Point(**point) for point in line["points"]]
    return [Curve(method, paces[method], points[method]) for method in points if method in paces]


def format_table(curves: Sequence[Curve]) -> str:
    """A row for each method: at the end, and where it reaches the goal.

    The goal is the last loss of the worst method, so that each method reaches it.
    """
    goal = max(curve.points[-1].loss for curve in curves)
    whole = curves[0].points[-1].bytes
    titles = f"{'method':24}{'loss':>8}{'MB':>10}{'fewer':>8}{'min':>8}{'exchange':>10}"
    lines = [titles + f"{f'MB to {goal:.3f}':>14}{f'min to {goal:.3f}':>14}"]
    for curve in curves:
        last = curve.points[-1]
        place = next(n for n, point in enumerate(curve.points) if point.loss <= goal)
        lines.append(
            f"{curve.method:24}{last.loss:>8.4f}{last.bytes / 1e6:>10.1f}"
            f"{whole / last.bytes:>7.1f}x{curve.seconds[-1] / 60:>8.2f}"
            f"{curve.pace.exchange * 1e3:>7.1f} ms"
            f"{curve.points[place].bytes / 1e6:>14.1f}{curve.seconds[place] / 60:>14.2f}"
        )
    return "\n".join(lines)
