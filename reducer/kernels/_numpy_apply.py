"""The steps of optimizers in NumPy: the formulas of ``reducer.optimizers.rules``, line by line.

Each operation is on float32, for the scalars are ``np.float32``, so the bits are those of C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from reducer.kernels._views import Array, blocks, elements, overlap
from reducer.optimizers.rules import (
    SCALARS,
    SLOT_COUNTS,
    AdagradScalars,
    AdamScalars,
    MomentumScalars,
    ReplaceScalars,
    Rule,
    SgdScalars,
)
from reducer.wire.codes import Flag

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc.Buffer is new in Python 3.12

_FLOAT32 = np.dtype("<f4")


def apply(
    rule: int,
    count: int,
    parameters: Buffer,
    gradient: Buffer,
    slots: Sequence[Buffer],
    scalars: Sequence[float],
) -> int:
    if rule not in SCALARS:
        raise ValueError(f"no kernel for rule {rule}: expected a Rule number, 1 to 5")
    numbers = _checked_scalars(Rule(rule), scalars)
    p = elements("parameters", parameters, _FLOAT32, count, writable=True)
    g = elements("gradient", gradient, _FLOAT32, count)
    state = [
        elements(f"slots[{i}]", slot, _FLOAT32, count, writable=True)
        for i, slot in enumerate(slots)
    ]
    if len(state) != SLOT_COUNTS[Rule(rule)]:
        raise ValueError(
            f"apply: rule {rule} has {SLOT_COUNTS[Rule(rule)]} slots, got {len(state)}"
        )
    named = {"parameters": p, "gradient": g, **{f"slots[{i}]": s for i, s in enumerate(state)}}
    for (one, first), (other, second) in combinations(named.items(), 2):
        if overlap(first, second):
            raise ValueError(f"apply: {other} overlaps {one}")
    finite = True
    for block in blocks(count):
        results = [p[block], *(slot[block] for slot in state)]
        with np.errstate(all="ignore"):
            _STEPS[Rule(rule)](results[0], g[block], results[1:], numbers)
        finite = finite and all(bool(np.isfinite(result).all()) for result in results)
    return 0 if finite else int(Flag.NONFINITE)


def within(count: int, values: Buffer, limit: float) -> bool:
    if not limit > 0:
        raise ValueError(f"within: limit must be above 0, got {limit}")
    array = elements("values", values, _FLOAT32, count)
    with np.errstate(over="ignore"):
        bound = np.float32(limit)
    return all(bool((np.abs(array[block]) < bound).all()) for block in blocks(count))


def _checked_scalars(rule: Rule, scalars: Sequence[float]) -> Any:
    """The rule's scalars as ``np.float32``."""
    kind = SCALARS[rule]
    if len(scalars) != len(kind._fields):
        raise ValueError(
            f"apply: rule {int(rule)} has {len(kind._fields)} scalars, got {len(scalars)}"
        )
    with np.errstate(over="ignore"):
        numbers = [np.float32(scalar) for scalar in scalars]
    for number, scalar in enumerate(numbers):
        if not np.isfinite(scalar):
            raise ValueError(f"apply: scalars[{number}] is no finite float32")
    return kind._make(numbers)


def _replace(p: Array, g: Array, slots: Sequence[Array], s: ReplaceScalars) -> None:
    p[:] = g


def _sgd(p: Array, g: Array, slots: Sequence[Array], s: SgdScalars) -> None:
    h = g + s.l2 * p
    p -= s.rate * h + s.decay * p


def _momentum(p: Array, g: Array, slots: Sequence[Array], s: MomentumScalars) -> None:
    (momentum,) = slots
    h = g + s.l2 * p
    momentum[:] = s.keep * momentum + s.gain * h
    p -= (s.gradient_rate * h + s.slot_rate * momentum) + s.decay * p


def _adagrad(p: Array, g: Array, slots: Sequence[Array], s: AdagradScalars) -> None:
    (accumulator,) = slots
    h = g + s.l2 * p
    accumulator += h * h
    p -= (s.rate * h) / (np.sqrt(accumulator + s.eps_inside) + s.eps_outside) + s.decay * p


def _adam(p: Array, g: Array, slots: Sequence[Array], s: AdamScalars) -> None:
    first, second = slots
    h = g + s.l2 * p
    first += (h - first) * s.first_gain
    second += (h * h - second) * s.second_gain
    p -= (s.rate * first) / (np.sqrt(second) + s.eps) + s.decay * p


_STEPS: dict[Rule, Callable[[Array, Array, Sequence[Array], Any], None]] = {
    Rule.REPLACE: _replace,
    Rule.SGD: _sgd,
    Rule.MOMENTUM: _momentum,
    Rule.ADAGRAD: _adagrad,
    Rule.ADAM: _adam,
}
