"""The table of one case of `bench.cpu`, and its verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from bench.pairs import FLOOR, OURS, C, Case, verdict

Part = Literal["lane", "worker"]


@dataclass(frozen=True)
class Turn:
    """The result of one side in one turn: CPU seconds per GB, and the seconds of a round."""

    side: str
    lane: float
    worker: float
    seconds: float


class Limit(NamedTuple):
    """The largest ratio of our CPU time to the CPU time of ``peer``, with 4 workers on loopback."""

    part: Part
    chunk_bytes: int
    peer: str
    ratio: float


LIMITS = (
    Limit("lane", 1 << 20, FLOOR, 1.25),
    Limit("lane", 1 << 20, C, 1.15),
    Limit("worker", 1 << 20, FLOOR, 1.35),
    Limit("worker", 64 << 10, FLOOR, 1.6),
)
# The largest ratio of our time of a round to the C pair's time, with limited NICs.
TIME_LIMIT = 1.03

_SIDES = (FLOOR, C, OURS)
_HEADER = (
    f"{'':<14} {'CPU s/GB':>9} {'min':>7} {'max':>7} {'us/chunk':>9} {'x floor':>8} {'x C':>6} "
    f"{'ms/round':>9} {'x floor':>8}"
)


def format_table(case: Case, turns: Sequence[Turn]) -> str:
    """A title, and a row for each side of the lane and of the worker.

    A server and its workers run together, so the lane and the worker of a side have one time.
    """
    place = "in place" if case.in_place else "out of place"
    repeats = sum(turn.side == OURS for turn in turns)
    title = (
        f"Chunks of {case.chunk_bytes >> 10} KiB: float32, {case.workers} workers, arrays of "
        f"{case.bytes / (1 << 20):g} MiB {place}, window {case.window_bytes >> 10} KiB,\n"
        f"{case.network}; {repeats} turns, every sum checked\n"
    )
    rows = [_row(part, side, case, turns) for part in get_args(Part) for side in _SIDES]
    return "\n".join([title, _HEADER, *rows, ""])


def verdicts(case: Case, turns: Sequence[Turn]) -> list[str]:
    """A line for each limit of this case."""
    if case.rate:
        return [verdict("time of a round", _ratio(turns, "seconds", OURS, C), C, TIME_LIMIT)]
    return [
        verdict(limit.part, _ratio(turns, limit.part, OURS, limit.peer), limit.peer, limit.ratio)
        for limit in LIMITS
        if (case.workers, case.chunk_bytes) == (4, limit.chunk_bytes)
    ]


def _row(part: Part, side: str, case: Case, turns: Sequence[Turn]) -> str:
    costs = _values(turns, part, side)
    cost = statistics.median(costs)
    seconds = statistics.median(_values(turns, "seconds", side))
    return (
        f"{part:<6} {side:<7} {cost:>9.4f} {min(costs):>7.4f} {max(costs):>7.4f} "
        f"{cost * case.chunk_bytes / 1e3:>9.1f} {_ratio(turns, part, side, FLOOR):>8.3f} "
        f"{_ratio(turns, part, side, C):>6.3f} {seconds * 1e3:>9.1f} "
        f"{_ratio(turns, 'seconds', side, FLOOR):>8.3f}"
    )


def _ratio(turns: Sequence[Turn], what: str, side: str, peer: str) -> float:
    """The median of a side over the median of its peer."""
    median, peer_median = (statistics.median(_values(turns, what, name)) for name in (side, peer))
    return median / peer_median


def _values(turns: Sequence[Turn], what: str, side: str) -> list[float]:
    return [getattr(turn, what) for turn in turns if turn.side == side]
