"""Either compiled modules or their sources run, all of one kind, and up to date."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import reducer
from reducer import compiled
from reducer.wire.errors import InternalError

FOLDER = Path(reducer.__file__).parent
SERVER = [
    FOLDER / f"server/data/{name}.py" for name in ("buffers", "connection", "executor", "shell")
]
SOURCES = [*FOLDER.glob("wire/*.py"), *FOLDER.glob("core/**/*.py"), *SERVER]


def test_all_that_handles_contributions_is_compiled_or_nothing() -> None:
    for source in SOURCES:
        if source.name == "__init__.py":
            continue
        name = ".".join(source.relative_to(FOLDER.parent).with_suffix("").parts)
        file = import_module(name).__file__
        assert file is not None and file.endswith(".so") == compiled.is_compiled()


def test_a_source_that_has_changed_or_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.check_sources()
    for name in ("reducer/wire/errors.py", "reducer/gone.py"):
        planted = SimpleNamespace(SOURCES={name: "0" * 64})
        monkeypatch.setitem(sys.modules, "reducer._compiled", planted)
        with pytest.raises(InternalError, match=f"{name} has changed .* make venv"):
            compiled.check_sources()


def test_without_compiled_modules_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reducer._compiled", None)
    assert not compiled.is_compiled()
    compiled.check_sources()
