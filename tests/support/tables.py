"""What a table must hold: its optimizer's steps by the NumPy kernels, and gradients for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from reducer.kernels import load
from reducer.optimizers import SGD, Optimizer
from reducer_client.tables import Receipt

Arrays = dict[str, npt.NDArray[np.float32]]

# With integers every sum is exact, whatever the order of the updates.
LEDGER = SGD(1.0, convention="torch")
SHAPES = {"w": (64, 100), "empty": (0, 3), "b": (), "v": (4_001,)}


def zeros() -> Arrays:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def integers(seed: int) -> Arrays:
    """A gradient of small integers."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-8, 9, shape).astype(np.float32) for name, shape in SHAPES.items()}


def floats(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def flat(arrays: Arrays) -> npt.NDArray[np.float32]:
    return np.concatenate([arrays[name].reshape(-1) for name in SHAPES])


def ledger(first: Arrays, gradients: Iterable[Arrays]) -> npt.NDArray[np.float32]:
    """The parameters after all gradients, with the optimizer LEDGER."""
    total = flat(first).astype(np.float64)
    for gradient in gradients:
        total -= flat(gradient)
    return total.astype(np.float32)


def step_ledger(
    receipts: Iterable[Iterable[Receipt]], seed_of: Callable[[int, int], int]
) -> npt.NDArray[np.float32]:
    """The parameters after common steps from zeros, by the receipts of each worker.

    ``seed_of(worker, number)``: of the integers that were pushed; numbers from 0 on. Exact for two
    workers.
    """
    members: dict[int, list[int]] = {}  # the seeds of each step's gradients
    for worker, each in enumerate(receipts):
        for number, receipt in enumerate(each):
            if receipt.outcome == "applied":
                members.setdefault(receipt.version, []).append(seed_of(worker, number))
    assert sorted(members) == [*range(1, max(members, default=0) + 1)], f"steps: {sorted(members)}"
    total = flat(zeros()).astype(np.float64)
    for seeds in members.values():
        total -= sum(flat(integers(seed)) for seed in seeds) / len(seeds)
    return total.astype(np.float32)


def stepped(
    optimizer: Optimizer, first: Arrays, gradients: Iterable[tuple[Arrays, float | None]]
) -> npt.NDArray[np.float32]:
    """The parameters after steps (gradient, learning rate), by the kernels in NumPy."""
    kernels = load("numpy")
    parameters = flat(first)
    slots = [np.full(parameters.size, slot.initial, np.float32) for slot in optimizer.slots]
    for number, (gradient, rate) in enumerate(gradients, 1):
        scalars = optimizer.scalars(number, rate)
        kernels.apply(
            int(optimizer.rule), parameters.size, parameters, flat(gradient), slots, scalars
        )
    return parameters
