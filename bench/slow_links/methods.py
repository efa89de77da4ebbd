"""The compared methods, by name, and what is expected of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.slow_links.controls import HalfLost, WrongSign
from reducer_client.outer.optimizer import AVERAGE, OuterSGD


@dataclass(frozen=True)
class Method:
    """How the ranks exchange.

    Args:
        options: arguments of ``DiLoCo``; None for the gradients of each step.
        spoil: wraps the group, from the group and the seed.
    """

    options: Mapping[str, Any] | None = None
    spoil: Callable[[Any, int], Any] = field(default=lambda group, seed: group)


@dataclass(frozen=True)
class Result:
    """The means over the seeds. ``nbytes`` are those that the reducers have counted."""

    accuracy: float
    lowest: float
    nbytes: float
    steps: int


WHOLE = "data parallel"
_STREAMED = {"fragments": 4, "keep_local": 0.5, "outer": OuterSGD(lr=0.4)}
METHODS: dict[str, Method] = {
    WHOLE: Method(),
    "DiLoCo H 20": Method({"every": 20}),
    "DiLoCo H 50": Method({"every": 50}),
    "LocalSGD H 20": Method({"every": 20, "outer": AVERAGE}),
    "streaming H 20": Method({"every": 20, "delay": 1, **_STREAMED}),
    "wrong sign H 20": Method({"every": 20}, WrongSign),
    "half lost H 20": Method({"every": 20}, HalfLost),
}


def with_wires(wires: list[str]) -> dict[str, Method]:
    """The methods, and one more for each dtype in which pseudo-gradients may be sent."""
    more = {f"DiLoCo H 50 {w}": Method({"every": 50, "wire_dtype": w}) for w in wires}
    return METHODS | more


def verdicts(results: Mapping[str, Result]) -> Iterator[str]:
    """The bars, each with whether it was met; only those whose methods were run."""
    for name, (needs, is_met) in _BARS.items():
        if all(each in results for each in needs):
            met = is_met(*(results[each] for each in needs))
            yield f"{name}: {'met' if met else 'MISSED'}"


_E3M0 = "DiLoCo H 50 e3m0"
_BARS: dict[str, tuple[list[str], Callable[..., bool]]] = {
    "DiLoCo H 20 >= 96.5 %": (["DiLoCo H 20"], lambda r: r.accuracy >= 0.965),
    "the wrong sign gives 10 %": (["wrong sign H 20"], lambda r: r.accuracy <= 0.2),
    "half of the contributions lost: within 1 point of data parallel": (
        ["half lost H 20", WHOLE],
        lambda lost, whole: lost.accuracy >= whole.accuracy - 0.01,
    ),
    "DiLoCo H 50 with e3m0: within 0.7 points of data parallel": (
        [_E3M0, WHOLE],
        lambda r, whole: r.accuracy >= whole.accuracy - 0.007,
    ),
    "DiLoCo H 50 with e3m0: at least 100 x fewer bytes": (
        [_E3M0, WHOLE],
        lambda r, whole: 100 * r.nbytes <= whole.nbytes,
    ),
}
