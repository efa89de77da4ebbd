"""What a step takes and costs beside its all-reduce, and below which price reducers pay off.

Prices are those of one machine for an hour, in any currency.
"""

from __future__ import annotations

import math

_HOUR = 3600.0


def step_seconds(compute: float, allreduce: float, overlap: float) -> float:
    """A step: compute + what of the all-reduce does not fit beside the overlapping part of it.

    DDP sends a bucket's gradients while the backward pass makes the next ones (Li and others,
    "PyTorch Distributed", VLDB 2020, section 3.2.3). ``overlap`` is the part of the computation
    that can hide communication: 0 where the two take turns at the same cores, towards 2/3 (backward
    takes two thirds) where a GPU computes and the network is idle otherwise.
    """
    return compute + max(0.0, allreduce - overlap * compute)


def compute_seconds(step: float, ring: float, overlap: float) -> float:
    """The computation in a ``step`` that was measured with a ring: `step_seconds` inverted.

    Raises ValueError for a step that is shorter than its ring.
    """
    if overlap * step >= ring:
        return step
    if step < ring:
        raise ValueError(
            f"step: expected at least the {ring:.3g} s that a ring needs, got {step:.3g} s; "
            "are size, type and rates those of the measurement?"
        )
    return (step - ring) / (1 - overlap)


def step_cost(
    seconds: float, workers: int, worker_price: float, reducers: int, reducer_price: float
) -> float:
    """What all machines cost for one step: (W x price + R x price) x seconds / 3600."""
    return (workers * worker_price + reducers * reducer_price) * seconds / _HOUR


def break_even_ratio(workers: int, reducers: int, ring_step: float, step: float) -> float:
    """The price of a reducer over that of a worker at which both cost the same for each step.

    (W p + R q) x step = W p x ring_step, hence q / p = W / R x (ring_step / step - 1); the same
    as optcast's docs/efa.md, where a cut of the time by R q / (W p + R q) is what is needed.
    Below it the reducers pay off; 0 or less: at no price.

    >>> break_even_ratio(8, 16, 1.75, 1.0)
    0.375
    """
    return workers / reducers * (ring_step / step - 1)


def check_price(field: str, price: float | None) -> None:
    """Raise ValueError with field, expected and got for what is no price; None is not known."""
    if price is not None and not 0 <= price <= 1e9:
        raise ValueError(f"{field}: expected a price for an hour from 0, got {price:g}")


def check_seconds(field: str, seconds: float | None) -> None:
    """Raise ValueError with field, expected and got for what is no time; None is not known."""
    if seconds is not None and not 0 <= seconds <= 1e9:
        raise ValueError(f"{field}: expected seconds from 0, got {seconds:g}")


def check_overlap(overlap: float) -> None:
    """Raise ValueError with field, expected and got unless it is a part of one."""
    if math.isnan(overlap) or not 0 <= overlap <= 1:
        raise ValueError(f"overlap: expected a number from 0 to 1, got {overlap:g}")
