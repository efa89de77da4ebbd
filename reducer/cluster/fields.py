"""Reads JSON in a variable field by field; errors name the path of the field."""

from __future__ import annotations

import json
from dataclasses import dataclass

from reducer.cluster.variables import ClusterError


@dataclass(frozen=True)
class Field:
    """A value in the JSON text of a variable, and the path of the value."""

    variable: str
    path: str
    value: object

    def get(self, name: str) -> Field | None:
        """The field ``name``; None if it is absent or null."""
        field = self._field(name)
        return None if field.value is None else field

    def need(self, name: str, expected: str) -> Field:
        """The field ``name``; raises ClusterError if it is absent or null."""
        field = self._field(name)
        if field.value is None:
            raise field.error(f"expected {expected}, got none")
        return field

    def elements(self, what: str) -> list[Field]:
        """The elements of a list of ``what``; an empty object (an unused pool) has none."""
        if self.value == {}:
            return []
        if not isinstance(self.value, list):
            raise self.refuse(f"a list of {what}")
        return [
            Field(self.variable, f"{self.path}[{index}]", value)
            for index, value in enumerate(self.value)
        ]

    def text(self, what: str) -> str:
        if not isinstance(self.value, str):
            raise self.refuse(what)
        return self.value

    def integer(self, what: str) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.refuse(what)
        return self.value

    def _field(self, name: str) -> Field:
        if not isinstance(self.value, dict):
            raise self.refuse("an object")
        path = f"{self.path}.{name}" if self.path else name
        return Field(self.variable, path, self.value.get(name))

    def refuse(self, expected: str) -> ClusterError:
        return self.error(f"expected {expected}, got {_describe(self.value)}")

    def error(self, text: str) -> ClusterError:
        where = f"{self.variable}: {self.path}" if self.path else self.variable
        return ClusterError(f"{where}: {text}")


def parse(variable: str, text: str) -> Field:
    """Parse the JSON text of a variable. Raises ClusterError unless it is a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{variable}: expected a JSON object: {error}") from None
    field = Field(variable, "", value)
    if not isinstance(value, dict):
        raise field.refuse("a JSON object")
    return field


def _describe(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
