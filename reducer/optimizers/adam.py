"""Adam and AdamW: steps from running means of the gradient and of its square."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final

from reducer.optimizers.checks import BY_CONVENTION, LEAST, Checks, Convention
from reducer.optimizers.rules import AdamScalars, Rule, Slot
from reducer.optimizers.scalars import check_step, current_rate, float32, weight_decay_scalars

_EPS: Final[Mapping[str, float]] = {"torch": 1e-8, "tf": 1e-8, "keras": 1e-7}
_WEIGHT_DECAY: Final[Mapping[str, float]] = {"torch": 0.01, "keras": 0.004}  # of AdamW


@dataclass(frozen=True)
class Adam:
    """Adam as ``torch.optim.Adam``, TensorFlow's ``ApplyAdam`` or ``keras.optimizers.Adam``.

    With the means m and v, and the corrections c1 = 1 - beta1**t and c2 = 1 - beta2**t of step t:

    - ``torch``: ``p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps)``, eps 1e-8
    - ``tf``, ``keras``: ``p -= lr * sqrt(c2) / c1 * m / (sqrt(v) + eps)``, eps 1e-8 and 1e-7. This
      eps is the "epsilon hat" of Kingma and Ba (arXiv 1412.6980, section 2).

    So in the first steps an eps of ``tf`` is as large as ``eps / sqrt(c2)`` of ``torch``.
    ``weight_decay`` is as in ``SGD``.

    Raises ``OptimizerError`` for a value that is out of range, or for an option that the convention
    does not have. eps cannot be 0: a gradient of 0 would make the parameter NaN.
    """

    NAME: ClassVar[str] = "adam"

    lr: float
    _: KW_ONLY
    convention: Convention
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = BY_CONVENTION
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks = Checks(self, self.NAME)
        checks.convention(self.convention)
        checks.default("eps", _EPS, self.convention)
        checks.number("lr")
        checks.below_one("beta1")
        checks.below_one("beta2")
        # The first step of torch has the smallest eps of all (see scalars).
        checks.number("eps", least=LEAST / math.sqrt(1.0 - self.beta2))
        checks.number("weight_decay")
        if self.weight_decay and self.convention == "tf":
            checks.refuse("weight_decay must be 0, because TensorFlow's kernels have none")

    @property
    def rule(self) -> Rule:
        return Rule.ADAM

    @property
    def slots(self) -> tuple[Slot, ...]:
        return Slot("first_moment", 0.0), Slot("second_moment", 0.0)

    def scalars(self, step: int, lr: float | None = None) -> AdamScalars:
        """The scalars of step number ``step``, from 1 on. ``lr`` replaces the initial one.

        The formula of torch is the formula of TensorFlow with ``eps * sqrt(c2)`` in place of eps,
        since ``sqrt(v) / sqrt(c2) + eps`` is ``(sqrt(v) + eps * sqrt(c2)) / sqrt(c2)``.

        Raises ``OptimizerError`` if the step or ``lr`` is out of range.
        """
        check_step(step)
        rate = current_rate(self.lr, lr)
        first = 1.0 - self.beta1**step
        second = math.sqrt(1.0 - self.beta2**step)
        l2, decay = weight_decay_scalars(self.weight_decay, rate, coupled=self._coupled)
        return AdamScalars(
            first_gain=float32("first_gain", 1.0 - self.beta1),
            second_gain=float32("second_gain", 1.0 - self.beta2),
            rate=float32("rate", rate * second / first),
            eps=float32("eps", self.eps * second if self.convention == "torch" else self.eps),
            l2=l2,
            decay=decay,
        )

    @property
    def _coupled(self) -> bool:
        return self.convention == "torch"


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW as ``torch.optim.AdamW`` or ``keras.optimizers.AdamW``.

    Adam that shrinks the parameters by ``lr * weight_decay`` of themselves in each step. The
    default of ``weight_decay`` is 0.01 for ``torch`` and 0.004 for ``keras``. There is no ``tf``:
    the AdamW of TensorFlow Addons does not multiply the weight decay by the learning rate.
    """

    NAME: ClassVar[str] = "adamw"

    weight_decay: float = BY_CONVENTION

    def __post_init__(self) -> None:
        checks = Checks(self, self.NAME)
        checks.convention(self.convention, known=tuple(_WEIGHT_DECAY))
        checks.default("weight_decay", _WEIGHT_DECAY, self.convention)
        super().__post_init__()

    @property
    def _coupled(self) -> bool:
        return False
