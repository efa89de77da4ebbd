"""The figures of `bench.ps throughput`: rates, ratios, and whether a bar is met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from reducer.columns import aligned

OURS, BACKUP, PS_LITE, PS_LITE_COPY = "ours", "ours+backup", "ps-lite", "ps-lite+copy"
SIDES = (OURS, BACKUP, PS_LITE, PS_LITE_COPY)
LEAST = {OURS: 1.0, BACKUP: 0.6}  # times the rate of ps-lite
AIM = {OURS: 1.2}
HEADER = (
    "workers/servers",
    "side",
    "ms",
    "least",
    "most",
    "GB/s a worker",
    "server s/GB",
    "worker s/GB",
    "x ps-lite",
    "bar",
)


@dataclass(frozen=True)
class Turn:
    """A turn of one side.

    ``times``: for each worker, the seconds of each push and pull. ``moved``: the bytes of one push
    and pull of one worker. CPU seconds are for each GB that all workers together move.
    """

    case: str
    side: str
    times: list[list[float]]
    moved: int
    server_cpu: float
    worker_cpu: float

    @property
    def seconds(self) -> float:
        """The mean time of the slowest worker."""
        return max(statistics.mean(of_worker) for of_worker in self.times)


def ratio(turns: Sequence[Turn], case: str, side: str, peer: str = PS_LITE) -> float | None:
    """How many times the peer's median rate a side reaches; None if one of them did not run."""
    ours, theirs = (
        [turn.seconds for turn in turns if (turn.case, turn.side) == (case, name)]
        for name in (side, peer)
    )
    return statistics.median(theirs) / statistics.median(ours) if ours and theirs else None


def format_table(turns: Sequence[Turn]) -> list[str]:
    """One row of medians for each case and side, with the sides in the order of `SIDES`."""
    rows: list[tuple[str, ...]] = [HEADER]
    for case, side in product(dict.fromkeys(turn.case for turn in turns), SIDES):
        some = [turn for turn in turns if (turn.case, turn.side) == (case, side)]
        if not some:
            continue
        seconds = [turn.seconds for turn in some]
        times = ratio(turns, case, side)
        rows.append(
            (
                case,
                side,
                *(f"{f(seconds) * 1e3:.0f}" for f in (statistics.median, min, max)),
                f"{some[0].moved / statistics.median(seconds) / 1e9:.2f}",
                f"{statistics.median(turn.server_cpu for turn in some):.2f}",
                f"{statistics.median(turn.worker_cpu for turn in some):.2f}",
                "" if times is None else f"{times:.2f}",
                verdict(side, times),
            )
        )
    return aligned(rows, left={0, 1, len(HEADER) - 1})


def verdict(side: str, times: float | None) -> str:
    """Whether a side meets its bar beside ps-lite; empty where there is no bar."""
    least = LEAST.get(side)
    if least is None or times is None:
        return ""
    if times < least:
        return f"{least:g}x: MISSED"
    aim = AIM.get(side)
    return f"{aim:g}x: reached" if aim and times >= aim else f"{least:g}x: met"
