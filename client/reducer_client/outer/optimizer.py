"""The outer optimizer: how a mean of pseudo-gradients changes the outer parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OuterSGD:
    """SGD with momentum. The pseudo-gradient is ``start - local``, so that it acts as a gradient.

    With the mean pseudo-gradient Δ, the velocity becomes b = momentum·b + Δ, and the outer
    parameters lose lr·(Δ + momentum·b), or lr·b without ``nesterov``. The defaults are those of
    DiLoCo; Streaming DiLoCo uses ``lr=0.4``.

    Raises ValueError for numbers that make no such optimizer.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"outer lr={self.lr}: expected a finite number above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"outer momentum={self.momentum}: expected a number from 0, below 1")

    def step(self, outer: Any, delta: Any, velocity: Any | None) -> None:
        """Change ``outer`` and ``velocity`` in place. The values of ``delta`` are lost.

        The arguments are arrays of NumPy or tensors of torch of one shape. ``velocity`` may be None
        if there is no momentum. Each operation rounds once, so that all machines compute the same
        bits: no ``alpha=`` and no fused multiply-add.
        """
        if self.momentum:
            assert velocity is not None
            velocity *= self.momentum
            velocity += delta
            if self.nesterov:
                delta += velocity * self.momentum
            else:
                delta[...] = velocity
        delta *= self.lr
        outer -= delta


AVERAGE = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
"""Plain averaging of the parameters: LocalSGD."""


def blend(local: Any, outer: Any, keep_local: float) -> Any:
    """What a rank goes on with: a mix of its own values and the outer values."""
    return local * keep_local + outer * (1.0 - keep_local)
