"""The wheels of dist/, which `make wheels` builds. `make test-wheels` builds and tests them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support import containers
from tests.support.cluster import ROOT

WHEELS = sorted((ROOT / "dist").glob("*.whl"))


def python_of(wheel: Path) -> str:
    """The version of Python in a wheel's name: 3.11 for cp311."""
    tag = wheel.stem.split("-")[2]
    return f"{tag[2]}.{tag[3:]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))
            if not WHEELS:
                item.add_marker(pytest.mark.skip(reason="no wheels in dist/: make test-wheels"))


@pytest.fixture(scope="session", params=WHEELS, ids=python_of)
def wheel(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="session")
def dependencies(wheel: Path) -> Path:
    """A folder with the wheels that a wheel needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = ROOT / "build" / "wheels" / "dependencies"
    return containers.download(python_of(wheel), folder, *project["dependencies"])
