"""The full bars of the proof with real sockets and processes: ``python -m tests.soak --help``.

Each module breaks one thing, and has ``run(count, seed, say)``, which checks every result and
returns figures; the tests run it with small counts.
"""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
Figures = dict[str, str]


def hush(text: str) -> None:
    """The `say` of tests."""


def milliseconds(seconds: list[float]) -> str:
    """Median, 99th percentile and most of some times."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    at = [ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e3 for q in (0.5, 0.99, 1)]
    return f"p50 {at[0]:.0f} ms, p99 {at[1]:.0f} ms, most {at[2]:.0f} ms of {len(ordered)}"
