"""What the scalars of all rules have in common.

Law: the primary of a shard computes the scalars of a step once, in float64, and rounds each once to
float32. They travel in the step's record. Nobody computes them again: a power of beta may differ
between two machines in its last bit.
"""

from __future__ import annotations

import math
import struct

from reducer.optimizers.checks import LARGEST, OptimizerError, as_number


def check_step(step: int) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise OptimizerError(f"the number of a step must be an integer from 1 on, got {step!r:.60}")


def current_rate(initial: float, lr: float | None) -> float:
    """``lr`` if it is given, otherwise ``initial``."""
    if lr is None:
        return initial
    rate = as_number("lr", lr)
    if not 0 <= rate <= LARGEST:
        raise OptimizerError(f"lr must lie between 0 and the largest float32, got {rate}")
    return rate


def weight_decay_scalars(weight_decay: float, rate: float, *, coupled: bool) -> tuple[float, float]:
    """The scalars l2 and decay. A coupled weight decay is added to the gradient."""
    if coupled:
        return float32("l2", weight_decay), 0.0
    return 0.0, float32("decay", rate * weight_decay)


def float32(scalar: str, value: float) -> float:
    """``value`` rounded to float32; raises ``OptimizerError`` if it is beyond all float32."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise OptimizerError(f"the scalar {scalar} is beyond float32: {value}")
    return rounded
