"""The page of the client's errors, from their docstrings and the codes of the wire protocol."""

from __future__ import annotations

import inspect

import griffe

from docs.reference.docstrings import as_markdown
from reducer.wire.codes import ErrorCode
from reducer_client import errors

_INTRO = """\
# Errors

Every failure between workers and reducers raises a subclass of `reducer_client.ReducerError`. A bad
argument raises `TypeError` or `ValueError` instead. This page comes from the code.
[Troubleshooting](troubleshooting.md) begins with the text of an error.
"""
_CODES = """\
## Codes on the wire

A reducer names an error by a number. The log of the reducer and the metric `reducer_errors_total`
have its name.

| code | name | error |
|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    names = sorted(errors.__all__, key=lambda name: (name != "ReducerError", name))
    return "\n".join([_INTRO, *map(_section, names), _codes()])


def _section(name: str) -> str:
    error: type[errors.ReducerError] = getattr(errors, name)
    facts = ["Base: " + ", ".join(f"`{base.__name__}`" for base in error.__bases__)]
    codes = [f"`{ErrorCode(code).name}`" for code, kind in errors.BY_CODE.items() if kind is error]
    if codes:
        facts.append(f"on the wire: {', '.join(codes)}")
    text = griffe.Docstring(inspect.getdoc(error) or "", parser=griffe.Parser.google)
    told = as_markdown(text).replace("What to do:", "**What to do**:")
    return f"## {name}\n\n{'; '.join(facts)}.\n\n{told}\n"


def _codes() -> str:
    rows = [
        f"| {code.value} | `{code.name}` | `{errors.BY_CODE[code].__name__}` |"
        for code in ErrorCode
    ]
    return _CODES + "\n".join(rows) + "\n"
