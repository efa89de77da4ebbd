"""Values of variables with their source, and the error for a value that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value", covariant=True)
Environment = Mapping[str, str]

ARGUMENT = "argument"


class ClusterError(ValueError):
    """A value cannot be used. The text has the variable, the field, and expected and got."""


@dataclass(frozen=True)
class Found(Generic[Value]):
    """`source` is the name of the variable, or "argument"."""

    value: Value
    source: str


def find_text(env: Environment, *variables: str) -> Found[str] | None:
    """The value of the first variable that is set and not empty."""
    for variable in variables:
        if env.get(variable, ""):
            return Found(env[variable], variable)
    return None


def find_integer(env: Environment, *variables: str) -> Found[int] | None:
    """The value of the first variable that is set; raises ClusterError if it is no integer."""
    found = find_text(env, *variables)
    if found is None:
        return None
    try:
        return Found(int(found.value), found.source)
    except ValueError:
        raise ClusterError(f"{found.source}={found.value!r}: expected an integer") from None
