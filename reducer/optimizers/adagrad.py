"""Adagrad: each parameter's steps shrink with the sum of its squared gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final

from reducer.optimizers.checks import BY_CONVENTION, LEAST, Checks, Convention
from reducer.optimizers.rules import AdagradScalars, Rule, Slot
from reducer.optimizers.scalars import check_step, current_rate, float32, weight_decay_scalars

_EPS: Final[Mapping[str, float]] = {"torch": 1e-10, "tf": 0.0, "keras": 1e-7}
_ACCUMULATOR: Final[Mapping[str, float]] = {"torch": 0.0, "tf": 0.1, "keras": 0.1}


@dataclass(frozen=True)
class Adagrad:
    """Adagrad as ``torch.optim.Adagrad``, TensorFlow's kernels or ``keras.optimizers.Adagrad``.

    The conventions differ in the place of epsilon, and in the defaults of ``eps`` and
    ``initial_accumulator``, the first value of the sum a:

    - ``torch``: ``p -= lr * g / (sqrt(a) + eps)``, 1e-10 and 0
    - ``tf``: the same formula, 0 and 0.1. Without eps the step is TensorFlow 1's ``ApplyAdagrad``,
      with one it is ``ApplyAdagradV2``.
    - ``keras``: ``p -= lr * g / sqrt(a + eps)``, 1e-7 and 0.1

    ``lr_decay`` exists in ``torch`` alone: the rate of step t is ``lr / (1 + (t - 1) * lr_decay)``.
    ``weight_decay`` is as in ``SGD``.

    Raises ``OptimizerError`` for a value that is out of range, or for an option that the convention
    does not have. eps and the initial accumulator cannot both be 0: a gradient of 0 would make the
    parameter NaN.
    """

    NAME: ClassVar[str] = "adagrad"

    lr: float
    _: KW_ONLY
    convention: Convention
    lr_decay: float = 0.0
    eps: float = BY_CONVENTION
    initial_accumulator: float = BY_CONVENTION
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks = Checks(self, self.NAME)
        checks.convention(self.convention)
        checks.default("eps", _EPS, self.convention)
        checks.default("initial_accumulator", _ACCUMULATOR, self.convention)
        for field in ("lr", "lr_decay", "eps", "initial_accumulator", "weight_decay"):
            checks.number(field)
        if max(self.eps, self.initial_accumulator) < LEAST:
            checks.refuse(f"eps or initial_accumulator must be at least {LEAST:.3g}")
        if self.lr_decay and self.convention != "torch":
            checks.refuse(f"lr_decay must be 0, because {self.convention} has none")
        if self.weight_decay and self.convention == "tf":
            checks.refuse("weight_decay must be 0, because TensorFlow's kernels have none")

    @property
    def rule(self) -> Rule:
        return Rule.ADAGRAD

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("accumulator", float32("initial_accumulator", self.initial_accumulator)),)

    def scalars(self, step: int, lr: float | None = None) -> AdagradScalars:
        """The scalars of step number ``step``, from 1 on. ``lr`` replaces the initial one.

        Raises ``OptimizerError`` if the step or ``lr`` is out of range.
        """
        check_step(step)
        rate = current_rate(self.lr, lr) / (1.0 + (step - 1) * self.lr_decay)
        coupled = self.convention == "torch"
        l2, decay = weight_decay_scalars(self.weight_decay, rate, coupled=coupled)
        eps = float32("eps", self.eps)
        inside = self.convention == "keras"
        return AdagradScalars(
            rate=float32("rate", rate),
            eps_inside=eps if inside else 0.0,
            eps_outside=0.0 if inside else eps,
            l2=l2,
            decay=decay,
        )
