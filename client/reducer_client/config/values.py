"""Kinds of values: how a variable's text is read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """``parse`` reads the text of a variable; ``check`` returns a value as the client keeps it.

    Both raise ValueError, whose text says what was expected.
    """

    check: Callable[[Any], T]
    parse: Callable[[str], Any] = str


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("expected seconds above 0")
    return seconds


SECONDS: Kind[float] = Kind(_seconds)
TEXT: Kind[str] = Kind(str)


def integer(least: int, most: int, note: str = "") -> Kind[int]:
    """A whole number from ``least`` to ``most``. ``note`` explains a special value."""

    def check(value: Any) -> int:
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise ValueError("expected an integer") from None
        if not least <= number <= most:
            raise ValueError(f"expected {least} to {most:,}{note and ', ' + note}")
        return number

    return Kind(check)


def one_of(choices: Iterable[str]) -> Kind[str]:
    """One of some words."""
    words = tuple(choices)

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return str(value)

    return Kind(check)
