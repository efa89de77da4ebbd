"""The images of deploy/, built once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import reducer
from reducer import keyfile
from tests.support import containers
from tests.support.cluster import ROOT

# The image's user (deploy/Dockerfile).
USER = 10001
LABELS = {"VERSION": reducer.__version__, "REVISION": "abcdef", "SOURCE": "/a/checkout"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = containers.unavailable()
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.container)
        item.add_marker(pytest.mark.timeout(900))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def base() -> str:
    """The image that ours are built on, made while the wheels come: both wait for the network."""
    with ThreadPoolExecutor(1) as thread:
        wheels = thread.submit(containers.wheelhouse)
        made = containers.base_image()
        wheels.result()
    return made


@pytest.fixture(scope="session")
def image(base: str) -> str:
    file = ROOT / "deploy" / "Dockerfile"
    return containers.build("localhost/reducer", file, base, **LABELS)


@pytest.fixture(scope="session")
def worker_image(base: str) -> str:
    return containers.build("localhost/worker", ROOT / "deploy" / "worker.Dockerfile", base)


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A key file that the image's user may read as its group, alone in a folder; root's, as we
    are."""
    path = tmp_path / "secret" / "key"
    path.parent.mkdir(mode=0o755)
    keyfile.make(str(path))
    path.chmod(0o440)
    shutil.chown(path, 0, USER)
    return str(path)
