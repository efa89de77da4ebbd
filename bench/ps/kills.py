"""The figures of `bench.ps failover`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from reducer.columns import aligned

P50, P99 = 0.3, 1.0  # seconds from the kill to the next receipt: the bar


@dataclass(frozen=True)
class Kill:
    """Seconds from a kill of our reducer, at the slowest worker.

    ``next``: to the next receipt of a whole push. The push may have been nearly done. ``fresh``: to
    the receipt of the first push that began after the kill. ``usual``: of a push before the kill.
    """

    next: float
    fresh: float
    usual: float


@dataclass(frozen=True)
class Silence:
    """What a worker of ps-lite did after the kill of a server.

    ``lines``: how many pushes and pulls it still ended, the last one ``last`` seconds after the
    kill. ``seconds``: how long it was watched, at most until it ended. ``code``: its exit code,
    None if it was still running.
    """

    side: str
    lines: int
    last: float
    seconds: float
    code: int | None

    def __str__(self) -> str:
        if self.code is not None:
            end = f"it ended with code {self.code} after {self.seconds:.1f} s"
        elif self.last > self.seconds / 2:
            end = "it goes on"
        else:
            end = f"it hangs: not one in the last {self.seconds - self.last:.1f} s"
        return f"{self.side}: the worker ended {self.lines} pushes after the kill; {end}"


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that is not below ``share`` of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def format_kills(kills: Sequence[Kill]) -> list[str]:
    """The times, and whether the bar is met."""
    rows: list[tuple[str, ...]] = [("ours: from the kill to", "p50 ms", "p99 ms", "most ms")]
    for name, values in (
        ("the next receipt", [kill.next for kill in kills]),
        ("the receipt of a push begun after it", [kill.fresh for kill in kills]),
        ("a push without a kill", [kill.usual for kill in kills]),
    ):
        figures = statistics.median(values), percentile(values, 0.99), max(values)
        rows.append((name, *(f"{value * 1e3:.0f}" for value in figures)))
    nexts = [kill.next for kill in kills]
    met = statistics.median(nexts) <= P50 and percentile(nexts, 0.99) <= P99
    bar = f"p50 {P50 * 1e3:.0f} ms and p99 {P99 * 1e3:.0f} ms"
    return [*aligned(rows, left={0}), f"{len(kills)} kills; {bar}: {'met' if met else 'MISSED'}"]
