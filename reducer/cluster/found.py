"""A value and where it was found; the error for one that is no good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value", covariant=True)
Environment = Mapping[str, str]

ARGUMENT = "argument"


class ClusterError(ValueError):
    """What was found cannot be used; the text has the variable, the field, expected and got."""


@dataclass(frozen=True)
class Found(Generic[Value]):
    """`source`: the name of the variable, or "argument"."""

    value: Value
    source: str


def find_text(env: Environment, *variables: str) -> Found[str] | None:
    """Of the first variable that is set; an empty one counts as not set."""
    for variable in variables:
        if env.get(variable, ""):
            return Found(env[variable], variable)
    return None


def find_integer(env: Environment, *variables: str) -> Found[int] | None:
    """Of the first variable that is set; raises ClusterError where it is no integer."""
    found = find_text(env, *variables)
    if found is None:
        return None
    try:
        return Found(int(found.value), found.source)
    except ValueError:
        raise ClusterError(f"{found.source}={found.value!r}: expected an integer") from None
