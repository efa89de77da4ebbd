"""Stochastic gradient descent, with momentum, Nesterov's momentum and weight decay."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from reducer.optimizers.checks import Checks, Convention
from reducer.optimizers.rules import MomentumScalars, Rule, SgdScalars, Slot
from reducer.optimizers.scalars import check_step, current_rate, float32, weight_decay_scalars


@dataclass(frozen=True)
class SGD:
    """SGD as ``torch.optim.SGD``, TensorFlow's ``ApplyMomentum`` or ``keras.optimizers.SGD``.

    The conventions differ in two ways:

    - The slot of ``keras`` contains the learning rate (``s = momentum * s - lr * g``; ``p += s``),
      the slot of ``torch`` and ``tf`` does not (``s = momentum * s + g``; ``p -= lr * s``). So they
      differ where the learning rate changes.
    - ``weight_decay`` of ``torch`` is added to the gradient. ``keras`` shrinks the parameters by
      ``lr * weight_decay`` of themselves. ``tf`` has none.

    ``dampening`` exists in ``torch`` alone. There the first step takes the whole gradient, whatever
    the dampening.

    Raises ``OptimizerError`` for a value that is out of range, or for an option that the convention
    does not have.
    """

    NAME: ClassVar[str] = "sgd"

    lr: float
    _: KW_ONLY
    convention: Convention
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks = Checks(self, self.NAME)
        checks.convention(self.convention)
        checks.number("lr")
        checks.number("momentum", most=1.0)
        checks.number("dampening", most=1.0)
        checks.flag("nesterov")
        checks.number("weight_decay")
        if self.weight_decay and self.convention == "tf":
            checks.refuse("weight_decay must be 0, because TensorFlow's kernels have none")
        if self.dampening and self.convention != "torch":
            checks.refuse(f"dampening must be 0, because {self.convention} has none")
        if not self.momentum and (self.nesterov or self.dampening):
            checks.refuse("nesterov and dampening need a momentum above 0")
        if self.nesterov and self.dampening:
            checks.refuse("nesterov needs a dampening of 0")

    @property
    def rule(self) -> Rule:
        return Rule.MOMENTUM if self.momentum else Rule.SGD

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("momentum", 0.0),) if self.momentum else ()

    def scalars(self, step: int, lr: float | None = None) -> SgdScalars | MomentumScalars:
        """The scalars of step number ``step``, from 1 on. ``lr`` replaces the initial one.

        Raises ``OptimizerError`` if the step or ``lr`` is out of range.
        """
        check_step(step)
        rate = current_rate(self.lr, lr)
        coupled = self.convention == "torch"
        l2, decay = weight_decay_scalars(self.weight_decay, rate, coupled=coupled)
        if not self.momentum:
            return SgdScalars(float32("rate", rate), l2, decay)
        gain = 1.0 - self.dampening if step > 1 else 1.0
        slot_rate = self.momentum if self.nesterov else 1.0
        if self.convention == "keras":
            gain, slot_rate = -rate, -slot_rate
        else:
            slot_rate = rate * slot_rate
        return MomentumScalars(
            keep=float32("keep", self.momentum),
            gain=float32("gain", gain),
            gradient_rate=float32("gradient_rate", rate) if self.nesterov else 0.0,
            slot_rate=float32("slot_rate", slot_rate),
            l2=l2,
            decay=decay,
        )
