"""Local variables, whose values differ between the ranks and whose gradients are not reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


class LocalVariables:
    """A set of variables, by identity, whose gradients are not reduced.

    Args:
        variables: the first members.
        keep: function from a local gradient to the gradient to apply. By default the identity.
    """

    def __init__(
        self, variables: Iterable[Any] = (), keep: Callable[[Any], Any] = lambda gradient: gradient
    ) -> None:
        self._keep = keep
        # The values keep the variables alive, so that no other object can get the same id.
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
        """Reduce the gradients of all other variables in one call of ``reduce``.

        Returns the gradients in the order given. A gradient that is None stays None.
        """
        pairs = list(zip(gradients, variables, strict=True))
        shared = [g for g, variable in pairs if g is not None and variable not in self]
        reduced = iter(reduce(shared) if shared else ())
        return [
            None if g is None else self._keep(g) if variable in self else next(reduced)
            for g, variable in pairs
        ]
