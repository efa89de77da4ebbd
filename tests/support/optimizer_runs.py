"""Many steps of an optimizer, and how far two runs lie apart.

The gradients of one element have one scale, from 1e-9 to 1: where they are small, a step depends on
eps. Half of the parameters begin at 0. The learning rate changes in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from reducer.kernels import load
from reducer.optimizers import Optimizer
from tests.support.counts import draws

Array: TypeAlias = npt.NDArray[Any]

STEPS = draws(250, 1_000)
COUNT = 259

# Bounds of ``difference``. CLOSE: the same formula in float32, with another order of operations; at
# most 1.7e-6 was seen. EXACT: the formula in float64. float32 loses a part of each step that is
# small beside its parameter; at most 2.6e-5 was seen.
CLOSE = 5e-6
EXACT = 5e-5


class Given(NamedTuple):
    step: int
    lr: float
    gradient: Array


def initial() -> Array:
    values = np.random.default_rng(1).normal(size=COUNT)
    values[::2] = 0
    return values.astype(np.float32)


def steps(lr: float) -> Iterator[Given]:
    """The steps of a run that begins with ``lr``."""
    rng = np.random.default_rng(2)
    scales = 10 ** rng.uniform(-9, 0, COUNT)
    bias = rng.normal(size=COUNT)
    for step in range(1, STEPS + 1):
        gradient = scales * (rng.normal(size=COUNT) + bias)
        yield Given(step, lr if step <= STEPS // 2 else lr / 4, gradient.astype(np.float32))


def run(optimizer: Optimizer) -> list[Array]:
    """The parameters before the first step and after each step, by the native kernels."""
    kernels = load("native")
    parameters = initial()
    slots = [np.full(COUNT, slot.initial, np.float32) for slot in optimizer.slots]
    way = [parameters.copy()]
    for given in steps(getattr(optimizer, "lr", 0.0)):
        scalars = optimizer.scalars(given.step, given.lr)
        flags = kernels.apply(optimizer.rule, COUNT, parameters, given.gradient, slots, scalars)
        assert flags == 0
        way.append(parameters.copy())
    return way


def difference(way: list[Array], reference: list[Array]) -> float:
    """The largest difference at the end, relative to the start and the way of the reference."""
    exact = np.stack(reference).astype(np.float64)
    length = np.abs(exact[0]) + np.abs(np.diff(exact, axis=0)).sum(axis=0)
    return float((np.abs(way[-1] - exact[-1]) / length).max())
