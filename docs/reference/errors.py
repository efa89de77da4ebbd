"""The page of the client's errors, from their docstrings and the codes of the wire protocol."""

from __future__ import annotations

import inspect

from reducer.wire.codes import ErrorCode
from reducer_client import errors

_INTRO = """\
# Errors

Every failure between workers and reducers raises a subclass of `reducer_client.ReducerError`. A bad
argument raises `TypeError` or `ValueError` instead. The tables below come from the code.

Each error has the attributes `rank`, `round`, `key` and `reason`. An attribute that does not apply
is None, and `reason` is then empty. [Troubleshooting](troubleshooting.md) begins with the
text of an error.
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
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    return f"## {name}\n\nBase: {bases}\n\n{inspect.getdoc(error)}\n"


def _codes() -> str:
    rows = [
        f"| {code.value} | `{code.name}` | `{errors.BY_CODE[code].__name__}` |"
        for code in ErrorCode
    ]
    return _CODES + "\n".join(rows) + "\n"
