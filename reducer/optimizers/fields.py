"""Optimizers as plain fields: for frames, checkpoints and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, Final, TypeAlias

from reducer.optimizers.adagrad import Adagrad
from reducer.optimizers.adam import Adam, AdamW
from reducer.optimizers.checks import OptimizerError
from reducer.optimizers.none import NoOptimizer
from reducer.optimizers.sgd import SGD

Optimizer: TypeAlias = NoOptimizer | SGD | Adagrad | Adam | AdamW

KINDS: Final[Mapping[str, type[Optimizer]]] = {
    kind.NAME: kind for kind in (NoOptimizer, SGD, Adagrad, Adam, AdamW)
}


def to_fields(optimizer: Optimizer) -> dict[str, str | float | bool]:
    """The name of the optimizer under the key ``optimizer``, and each field, defaults too."""
    return {"optimizer": optimizer.NAME, **asdict(optimizer)}


def from_fields(values: Mapping[str, object]) -> Optimizer:
    """The inverse of ``to_fields``; a field with a default may be missing.

    Raises ``OptimizerError``, and nothing else, for whatever a peer sends: an optimizer that does
    not exist, a field that is unknown or missing, a value of a wrong type or out of range.
    """
    given: dict[str, Any] = dict(values)
    name = given.pop("optimizer", None)
    if not isinstance(name, str) or name not in KINDS:
        raise OptimizerError(f"optimizer must be one of {', '.join(KINDS)}, got {name!r:.60}")
    kind = KINDS[name]
    known = {field.name: field for field in fields(kind)}
    for field in given:
        if field not in known:
            listed = ", ".join(known) or "none"
            raise OptimizerError(f"{name} has no field {field!r:.60}; its fields: {listed}")
    for field, described in known.items():
        if field not in given and described.default is MISSING:
            raise OptimizerError(f"{name} needs the field {field}")
    return kind(**given)
