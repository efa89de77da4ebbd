"""Which frameworks are installed; this imports none of them."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence

import pytest

_CURE = "not installed; make test-frameworks installs it"


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip if one of the modules is not installed."""
    return _skip_if_missing(names, _CURE)


def needs_extra(*names: str) -> pytest.MarkDecorator:
    """Skip if one of the packages of the extras is not installed.

    Each runner of the tests collects all modules, so an import would slow down each runner.
    """
    return _skip_if_missing(names, "not installed")


def skip_without(*programs: str) -> None:
    """Skip if one of the modules that the programs import is not installed."""
    missing = _missing(*sorted({name for program in programs for name in _imports(program)}))
    if missing:
        pytest.skip(f"{', '.join(missing)} {_CURE}")


def _skip_if_missing(names: Sequence[str], why: str) -> pytest.MarkDecorator:
    missing = _missing(*names)
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} {why}")


def _missing(*names: str) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def _imports(program: str) -> Iterator[str]:
    """The names of the packages that a program imports."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
