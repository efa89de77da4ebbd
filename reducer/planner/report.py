"""A plan: what the model says of one cluster, as data and as text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from reducer.planner import model
from reducer.units import format_size

Winner = Literal["reducers", "ring", "neither"]
# Numbers of reducers that a table shows before it begins to leave some out.
_MOST_ROWS = 64
# Times that differ by rounding alone are equal.
_EQUAL = 1e-9


@dataclass(frozen=True)
class Cluster:
    """What is planned for; rates in Gbit/s of one NIC, each way."""

    workers: int
    worker_gbps: float
    reducer_gbps: float
    gradient_bytes: int

    def ring_seconds(self) -> float:
        return model.ring_seconds(self.gradient_bytes, self.workers, self.worker_gbps)

    def choice(self, reducers: int) -> Choice:
        """What so many reducers give."""
        seconds = model.reducer_seconds(
            self.gradient_bytes, self.workers, self.worker_gbps, reducers, self.reducer_gbps
        )
        ring = self.ring_seconds()
        return Choice(reducers, seconds, ring / seconds, find_winner(seconds, ring))


@dataclass(frozen=True)
class Choice:
    """One number of reducers; ``speedup`` is the ring's time over theirs."""

    reducers: int
    allreduce_seconds: float
    speedup: float
    winner: Winner


@dataclass(frozen=True)
class Plan:
    """The answer: the chosen number of reducers, and what fewer would give."""

    cluster: Cluster
    chosen: Choice
    needed: int
    to_beat_ring: int | None
    choices: tuple[Choice, ...]


def find_winner(reducer_seconds: float, ring_seconds: float) -> Winner:
    """Who takes less time."""
    if math.isclose(reducer_seconds, ring_seconds, rel_tol=_EQUAL):
        return "neither"
    return "reducers" if reducer_seconds < ring_seconds else "ring"


def make_plan(cluster: Cluster, reducers: int | None = None) -> Plan:
    """The plan for ``reducers``, or for as many as are needed.

    Raises ValueError with field, expected and got for a value that cannot be.
    """
    rates = (cluster.workers, cluster.worker_gbps, cluster.reducer_gbps)
    needed = model.reducers_needed(*rates)
    to_beat_ring = model.reducers_to_beat_ring(*rates)
    chosen = cluster.choice(needed if reducers is None else reducers)
    shown = {*range(1, needed + 1, math.ceil(needed / _MOST_ROWS)), needed, chosen.reducers}
    if to_beat_ring is not None:
        shown |= {to_beat_ring - 1, to_beat_ring} - {0}
    choices = tuple(cluster.choice(count) for count in sorted(shown))
    return Plan(cluster, chosen, needed, to_beat_ring, choices)


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    return {
        **asdict(plan.cluster),
        **asdict(plan.chosen),
        "ring_seconds": plan.cluster.ring_seconds(),
        "reducers_needed": plan.needed,
        "reducers_to_beat_ring": plan.to_beat_ring,
        "choices": [asdict(choice) for choice in plan.choices],
    }


def as_text(plan: Plan) -> str:
    """The plan as an aligned summary and table."""
    cluster, chosen = plan.cluster, plan.chosen
    facts = (
        ("workers", f"{cluster.workers} at {cluster.worker_gbps:g} Gbit/s"),
        ("reducers needed", f"{plan.needed} at {cluster.reducer_gbps:g} Gbit/s"),
        ("to beat a ring", _describe_break_even(plan.to_beat_ring)),
        ("gradients", format_size(cluster.gradient_bytes).removesuffix("iB") + " a worker"),
        (f"all-reduce, {_count(chosen.reducers)}", format_seconds(chosen.allreduce_seconds)),
        ("all-reduce, ring", format_seconds(cluster.ring_seconds())),
        ("speedup", f"{chosen.speedup:.2f}x"),
    )
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {value}" for name, value in facts]
    lines += ["", f"{'reducers':>8}  {'all-reduce':>10}  {'speedup':>7}  wins"]
    lines += [_row(choice, chosen) for choice in plan.choices]
    return "\n".join(lines)


def format_seconds(seconds: float) -> str:
    """Three digits or more, in the unit that needs no zeros.

    >>> format_seconds(0.0366), format_seconds(2.5), format_seconds(0.00002)
    ('36.6 ms', '2.50 s', '20.0 us')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        value = seconds * scale
        if value >= 1 or unit == "us":
            break
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def _describe_break_even(reducers: int | None) -> str:
    if reducers is None:
        return "no number will: a ring of one or two workers moves no more bytes"
    return f"{reducers} or more"


def _count(reducers: int) -> str:
    return f"{reducers} reducer" + ("s" if reducers != 1 else "")


def _row(choice: Choice, chosen: Choice) -> str:
    seconds = format_seconds(choice.allreduce_seconds)
    mark = " *" if choice == chosen else ""
    return f"{choice.reducers:>8}  {seconds:>10}  {choice.speedup:>6.2f}x  {choice.winner}{mark}"
