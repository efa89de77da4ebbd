"""Chooses the method that keeps the machines behind a slow link busy.

The methods have an order: what changes a training least comes first. H, the number of fragments and
the delay come from series of usual values.
"""

from __future__ import annotations

from dataclasses import dataclass

from reducer_tools.planner.slow_link import Kind, Link, Method, Outcome, Training, evaluate
from reducer_tools.planner.wires import (
    BFLOAT16,
    E3M0,
    E3M0_TO_BFLOAT16,
    FLOAT32,
    INT8,
    INT8_TO_BFLOAT16,
    Wire,
)

PROVEN_EVERY = 500  # the largest H of the DiLoCo paper's main result
USUAL_EVERY = 100  # the largest H of the Streaming DiLoCo paper
_SERIES = (10, 20, 50, 100, 200, 500, 1000, 2000)
# A fragment cannot be smaller than the largest parameter, so that more of them are seldom even.
_FRAGMENTS = (2, 4, 8, 16)
_DELAYS = (1, 2, 3, 4, 5)  # the Streaming DiLoCo paper advises 5 at most
_DATA_PARALLEL = (FLOAT32, BFLOAT16, INT8_TO_BFLOAT16, INT8)
_LOCAL: tuple[tuple[Kind, Wire], ...] = (
    ("DiLoCo", FLOAT32),
    ("DiLoCo", E3M0_TO_BFLOAT16),
    ("DiLoCo", E3M0),
    ("Streaming DiLoCo", FLOAT32),
    ("Streaming DiLoCo", E3M0_TO_BFLOAT16),
    ("Streaming DiLoCo", E3M0),
)
# Relative difference up to which a part of the time counts as reached: only rounding differs.
_EQUAL = 1e-9


@dataclass(frozen=True)
class LinkPlan:
    """The outcomes of all methods for one training over one link.

    Attributes:
        wanted: the part of the time in which the machines must compute.
        chosen: the outcome of `choose`.
        outcomes: all methods, in the order of how little they change a training.
    """

    training: Training
    link: Link
    wanted: float
    chosen: Outcome
    outcomes: tuple[Outcome, ...]

    def is_enough(self, outcome: Outcome) -> bool:
        return _reaches(outcome, self.wanted)


def check_wanted(busy: float) -> None:
    """Raise ValueError with field, expected and got for a part that no method can be asked for."""
    if not 0 < busy < 1:
        raise ValueError(f"busy: expected a part above 0 and below 100 %, got {busy * 100:g} %")


def make_link_plan(training: Training, link: Link, wanted: float) -> LinkPlan:
    """Evaluate all methods and choose one.

    Raises ValueError with field, expected and got for an invalid value.
    """
    check_wanted(wanted)
    data_parallel = [
        evaluate(Method("data parallel", wire), training, link) for wire in _DATA_PARALLEL
    ]
    local = [_settle(kind, wire, training, link, wanted) for kind, wire in _LOCAL]
    outcomes = (*data_parallel, *local)
    return LinkPlan(training, link, wanted, choose(outcomes, wanted), outcomes)


def choose(outcomes: tuple[Outcome, ...], wanted: float) -> Outcome:
    """The first method that is enough with a usual H; else the one with the smallest H.

    If no method is enough, the one that keeps the machines busiest.
    """
    enough = [each for each in outcomes if _reaches(each, wanted)]
    if not enough:
        return max(outcomes, key=lambda each: each.busy)
    usual = [each for each in enough if each.method.every <= USUAL_EVERY]
    return usual[0] if usual else min(enough, key=lambda each: each.method.every)


def _settle(kind: Kind, wire: Wire, training: Training, link: Link, wanted: float) -> Outcome:
    """The outcome with the smallest H that is enough; if none is, with the largest proven H.

    Of equal H the smallest delay counts, then the smallest number of fragments.
    """
    for every in _SERIES:
        for method in _variants(kind, wire, every):
            found = evaluate(method, training, link)
            if _reaches(found, wanted):
                return found
    tried = _variants(kind, wire, PROVEN_EVERY)
    return max((evaluate(each, training, link) for each in tried), key=lambda each: each.busy)


def _variants(kind: Kind, wire: Wire, every: int) -> list[Method]:
    if kind == "DiLoCo":
        return [Method(kind, wire, every)]
    return [
        Method(kind, wire, every, fragments, delay)
        for delay in _DELAYS
        for fragments in _FRAGMENTS
        if fragments * delay <= every
    ]


def _reaches(outcome: Outcome, wanted: float) -> bool:
    return outcome.busy * (1 + _EQUAL) >= wanted
