"""Signatures as Python would show them, in lines that fit a page."""

from __future__ import annotations

from collections.abc import Iterator

import griffe

_WIDTH = 88


def signature(found: griffe.Function | griffe.Class, name: str) -> str:
    """A call of the function or class, with the names and the defaults of its parameters."""
    given = [one for one in found.parameters if one.name not in ("self", "cls")]
    returns = getattr(found, "returns", None) if isinstance(found, griffe.Function) else None
    arrow = f" -> {returns}" if returns not in (None, "None") else ""
    parts = list(_with_markers(given))
    line = f"{name}({', '.join(parts)}){arrow}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){arrow}"])


def _with_markers(parameters: list[griffe.Parameter]) -> Iterator[str]:
    """The parameters, with a ``*`` before those that must be named."""
    named = False
    for one in parameters:
        if one.kind is griffe.ParameterKind.var_positional:
            named = True
        elif one.kind is griffe.ParameterKind.keyword_only and not named:
            named = True
            yield "*"
        yield _parameter(one)


def _parameter(one: griffe.Parameter) -> str:
    stars = {
        griffe.ParameterKind.var_positional: "*",
        griffe.ParameterKind.var_keyword: "**",
    }.get(one.kind or griffe.ParameterKind.positional_or_keyword, "")
    text = f"{stars}{one.name}" + (f": {one.annotation}" if one.annotation else "")
    if stars or one.default is None:
        return text
    default = str(one.default).replace("'", '"')
    return f"{text} = {default}" if one.annotation else f"{text}={default}"
