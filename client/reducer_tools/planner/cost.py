"""The time and the cost of a training step, and the price below which reducers pay off.

A price is for one machine and an hour, in any currency.
"""

from __future__ import annotations

import math

_HOUR = 3600.0


def step_seconds(compute: float, allreduce: float, overlap: float) -> float:
    """The time of a step: the computation, and the part of the all-reduce that it cannot hide.

    DDP sends a bucket's gradients while the backward pass computes the next ones (Li and others,
    "PyTorch Distributed", VLDB 2020, section 3.2.3). ``overlap`` is the fraction of the computation
    that can hide communication. It is 0 if both share the same cores, and up to 2/3 (the fraction
    of the backward pass) if a GPU computes and the network is otherwise idle.
    """
    return compute + max(0.0, allreduce - overlap * compute)


def compute_seconds(step: float, ring: float, overlap: float) -> float:
    """The computation time of a ``step`` measured with a ring; the inverse of `step_seconds`.

    Raises ValueError if the step is shorter than the ring's all-reduce.
    """
    if overlap * step >= ring:
        return step
    if step < ring:
        raise ValueError(
            f"step: expected at least the {ring:.3g} s that a ring needs, got {step:.3g} s; do "
            "size, type and rates match the measurement?"
        )
    return (step - ring) / (1 - overlap)


def step_cost(
    seconds: float, workers: int, worker_price: float, reducers: int, reducer_price: float
) -> float:
    """The cost of all machines for one step: (W x p + R x q) x seconds / 3600."""
    return (workers * worker_price + reducers * reducer_price) * seconds / _HOUR


def speedup(ring: float, seconds: float) -> float:
    """How many times as fast as a ring; 1 for one worker, who needs no time for either."""
    return ring / seconds if seconds else 1.0


def break_even_ratio(workers: int, reducers: int, ring_step: float, step: float) -> float:
    """The ratio of a reducer's price q to a worker's price p below which reducers pay off.

    At this ratio a step with reducers costs as much as a step over a ring: (W p + R q) x step =
    W p x ring_step, hence q / p = W / R x (ring_step / step - 1). optcast's docs/efa.md has the
    same rule. With a ratio of 0 or less, reducers pay off at no price.

    >>> break_even_ratio(8, 16, 1.75, 1.0)
    0.375
    """
    return workers / reducers * (speedup(ring_step, step) - 1)


def check_amount(field: str, what: str, amount: float | None) -> None:
    """Raise ValueError with field, expected and got for an invalid amount. None means unknown.

    ``what`` is what the amount counts: "seconds", or "a price for an hour".
    """
    if amount is not None and not 0 <= amount <= 1e9:
        raise ValueError(f"{field}: expected {what}, 0 or more, got {amount:g}")


def check_overlap(overlap: float) -> None:
    """Raise ValueError with field, expected and got for a number outside 0 to 1."""
    if math.isnan(overlap) or not 0 <= overlap <= 1:
        raise ValueError(f"overlap: expected a number from 0 to 1, got {overlap:g}")
