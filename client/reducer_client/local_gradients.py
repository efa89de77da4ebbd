"""Local variables: each rank has its own, and their gradients are not reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


class LocalVariables:
    """Variables by identity, and the function that their gradients pass through instead.

    Args:
        keep: turns a local gradient into the one that is applied; by default nothing changes.
    """

    def __init__(
        self, variables: Iterable[Any] = (), keep: Callable[[Any], Any] = lambda gradient: gradient
    ) -> None:
        self._keep = keep
        # The values keep the variables alive, and so their ids their own.
        self._variables = {id(variable): variable for variable in variables}

    def add(self, variable: Any) -> None:
        self._variables[id(variable)] = variable

    def __contains__(self, variable: Any) -> bool:
        return id(variable) in self._variables

    def reduce_others(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        reduce: Callable[[list[Any]], Sequence[Any]],
    ) -> list[Any]:
        """Reduce the gradients of all other variables in one call; None stays None."""
        pairs = list(zip(gradients, variables, strict=True))
        shared = [g for g, variable in pairs if g is not None and variable not in self]
        reduced = iter(reduce(shared) if shared else ())
        return [
            None if g is None else self._keep(g) if variable in self else next(reduced)
            for g, variable in pairs
        ]
