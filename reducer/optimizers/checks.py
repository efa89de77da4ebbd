"""Checks of an optimizer's fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Final, Literal, TypeAlias, cast, get_args

Convention: TypeAlias = Literal["torch", "tf", "keras"]

CONVENTIONS: Final[tuple[str, ...]] = get_args(Convention)
LARGEST: Final = (2.0 - 2.0**-23) * 2.0**127  # the largest finite float32
LEAST: Final = 2.0**-126  # the smallest positive float32 that has full precision
BY_CONVENTION: Final = cast("float", None)  # the default of a field, where conventions differ


class OptimizerError(ValueError):
    """An optimizer, a step number or a learning rate that no table may have."""


class Checks:
    """Checks the fields of one optimizer; each method raises ``OptimizerError``.

    For the ``__post_init__`` of a frozen dataclass: numbers are stored as floats, so that equal
    optimizers have equal fields.
    """

    def __init__(self, optimizer: object, name: str) -> None:
        self._optimizer = optimizer
        self._name = name

    def convention(self, value: object, known: tuple[str, ...] = CONVENTIONS) -> None:
        if not isinstance(value, str) or value not in known:
            self.refuse(f"convention must be one of {', '.join(known)}, got {value!r:.60}")

    def flag(self, field: str) -> None:
        value = getattr(self._optimizer, field)
        if not isinstance(value, bool):
            self.refuse(f"{field} must be true or false, got {value!r:.60}")

    def number(self, field: str, least: float = 0.0, most: float = LARGEST) -> None:
        value = as_number(f"{self._name}: {field}", getattr(self._optimizer, field))
        if not least <= value <= most:
            limit = "the largest float32" if most == LARGEST else f"{most:g}"
            self.refuse(f"{field} must lie between {least:g} and {limit}, got {value}")
        object.__setattr__(self._optimizer, field, value)

    def integer(self, field: str, least: int, most: int) -> None:
        value = getattr(self._optimizer, field)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(f"{field} must be an integer from {least} to {most}, got {value!r:.60}")

    def below_one(self, field: str) -> None:
        self.number(field)
        value = getattr(self._optimizer, field)
        if value >= 1:
            self.refuse(f"{field} must be at least 0 and below 1, got {value}")

    def default(self, field: str, defaults: Mapping[str, float], convention: str) -> None:
        """Store the convention's default, if the field has no value yet."""
        if getattr(self._optimizer, field) is BY_CONVENTION:
            object.__setattr__(self._optimizer, field, defaults[convention])

    def refuse(self, reason: str) -> None:
        raise OptimizerError(f"{self._name}: {reason}")


def as_number(name: str, value: object) -> float:
    """``value`` as a finite float; raises ``OptimizerError``, which names ``name``, otherwise."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptimizerError(f"{name} must be a number, got {value!r:.60}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise OptimizerError(f"{name} must be finite, got {value!r:.60}")
    return number
