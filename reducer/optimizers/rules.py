"""The update rules: the arithmetic of the optimizers, without the conventions of a framework.

A rule changes float32 arrays of one length in place: the parameters p and the slots, which are the
state of the optimizer. g is the mean gradient. All other names are scalars, the same for each
element. The conventions of PyTorch, TensorFlow and Keras differ only in the values of the scalars.

    h = g + l2 * p                       in each rule except REPLACE

    REPLACE    p = g

    SGD        p = p - (rate * h + decay * p)

    MOMENTUM   s = keep * s + gain * h
               p = p - ((gradient_rate * h + slot_rate * s) + decay * p)

    ADAGRAD    a = a + h * h
               p = p - ((rate * h) / (sqrt(a + eps_inside) + eps_outside) + decay * p)

    ADAM       m = m + (h - m) * first_gain
               v = v + (h * h - v) * second_gain
               p = p - ((rate * m) / (sqrt(v) + eps) + decay * p)

Law: each operation is one operation of IEEE 754 on float32, rounded to nearest even, in the order
of the parentheses. No two operations are contracted into one. p on the right-hand side is p before
the step. So the same scalars and arrays give the same bits on every machine.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias


class Rule(IntEnum):
    """The numbers of the rules; append-only, as the numbers of the wire protocol are."""

    REPLACE = 1
    SGD = 2
    MOMENTUM = 3
    ADAGRAD = 4
    ADAM = 5


class ReplaceScalars(NamedTuple):
    """REPLACE has no scalars."""


class SgdScalars(NamedTuple):
    rate: float
    l2: float
    decay: float


class MomentumScalars(NamedTuple):
    keep: float
    gain: float
    gradient_rate: float
    slot_rate: float
    l2: float
    decay: float


class AdagradScalars(NamedTuple):
    rate: float
    eps_inside: float
    eps_outside: float
    l2: float
    decay: float


class AdamScalars(NamedTuple):
    first_gain: float
    second_gain: float
    rate: float
    eps: float
    l2: float
    decay: float


Scalars: TypeAlias = ReplaceScalars | SgdScalars | MomentumScalars | AdagradScalars | AdamScalars


class Slot(NamedTuple):
    """One array of an optimizer's state; ``initial`` is the first value of each element."""

    name: str
    initial: float


# The slots that a rule's kernel takes. Slots of REPLACE are a history, of which no kernel knows.
SLOT_COUNTS: Final = {
    Rule.REPLACE: 0,
    Rule.SGD: 0,
    Rule.MOMENTUM: 1,
    Rule.ADAGRAD: 1,
    Rule.ADAM: 2,
}
SCALARS: Final[dict[Rule, type[Scalars]]] = {
    Rule.REPLACE: ReplaceScalars,
    Rule.SGD: SgdScalars,
    Rule.MOMENTUM: MomentumScalars,
    Rule.ADAGRAD: AdagradScalars,
    Rule.ADAM: AdamScalars,
}
