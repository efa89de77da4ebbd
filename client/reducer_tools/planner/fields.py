"""Reads fields of plain data from JSON or YAML. Errors name the path of the bad field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping

_LONGEST = 60
_MOST = 10**6


class SpecError(ValueError):
    """A field is invalid. The text has the path, what was expected, what came and what to try."""

    def __init__(self, path: str, expected: str, got: str, advice: str = "") -> None:
        super().__init__(f"{path}: expected {expected}, got {got}" + (f"; {advice}" * bool(advice)))


class Section:
    """A mapping and its path in the document.

    Like protobuf's JSON, a field may be written in lowerCamelCase or in snake_case, and a field
    with null counts as absent. The methods take the name in lowerCamelCase. They return None if the
    field is absent, and raise SpecError if its value has another type.
    """

    def __init__(self, path: str, value: object) -> None:
        if not isinstance(value, Mapping):
            raise SpecError(path or "document", "a mapping", describe(value))
        for name in value:
            if not isinstance(name, str):
                raise SpecError(path or "document", "names that are text", describe(name))
        self.path = path
        self._values: Mapping[str, object] = value

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    @property
    def names(self) -> Collection[str]:
        return self._values.keys()

    def at(self, name: str) -> str:
        """The path of a field. A name with unusual characters is quoted."""
        if not re.fullmatch(r"[\w+-]{1,80}", name):
            return f"{self.path}[{shorten(repr(name))}]"
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> object:
        """The value. Raises SpecError if the field is given in both spellings."""
        snake = snake_case(name)
        if snake != name and name in self._values and snake in self._values:
            raise SpecError(self.at(name), f"one spelling, not also {snake}", "both")
        return self._values.get(name, self._values.get(snake))

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise SpecError(self.at(name), "text", describe(value))
        return value

    def word(self, name: str) -> str | None:
        """A name, such as a machine type."""
        value = self.text(name)
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", value, re.ASCII):
            raise SpecError(self.at(name), "a name", describe(value))
        return value

    def texts(self, name: str) -> list[str] | None:
        """A list of strings."""
        if name not in self:
            return None
        found = []
        for path, value in self.items(name):
            if not isinstance(value, str):
                raise SpecError(path, "text", describe(value))
            found.append(value)
        return found

    def count(self, name: str, least: int = 0) -> int | None:
        """A whole number. Protobuf's JSON writes 64-bit numbers as text, which is accepted too."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise SpecError(self.at(name), f"a whole number, {least} or more", describe(value))
        return value

    def flag(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise SpecError(self.at(name), "true or false", describe(value))
        return value

    def number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(self.at(name), "a number", describe(value))
        try:
            return float(value)
        except OverflowError:
            raise SpecError(self.at(name), "a number", describe(value)) from None

    def section(self, name: str) -> Section | None:
        value = self.get(name)
        return None if value is None else Section(self.at(name), value)

    def items(self, name: str) -> Iterator[tuple[str, object]]:
        """The path and the value of each item of a list. Raises SpecError if there is no list."""
        value = self.get(name)
        if not isinstance(value, list):
            raise SpecError(self.at(name), "a list", describe(value))
        for index, item in enumerate(value):
            yield f"{self.at(name)}[{index}]", item

    def refuse_others(self, known: Collection[str]) -> None:
        """Raise SpecError for a name that is not in ``known``, which most likely is a typo."""
        for name in self._values:
            if name not in known and name not in map(snake_case, known):
                near = difflib.get_close_matches(name, known, 1)
                expected = f"{near[0]}" if near else f"one of {', '.join(sorted(known))}"
                raise SpecError(self.at(name), expected, describe(name))


def snake_case(name: str) -> str:
    """Convert a name in lowerCamelCase.

    >>> snake_case("workerPoolSpecs")
    'worker_pool_specs'
    """
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda match: "_" + match[0].lower(), name)


def describe(value: object) -> str:
    """A value as short text in one line, for the "got" part of an error."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)}"
    if isinstance(value, list | tuple | set):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return "a number of too many digits"
    return shorten(repr(value))


def shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
