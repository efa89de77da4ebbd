"""The reducer's image: run as a stranger's cluster would run it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.conftest import LABELS, USER
from tests.support.certs import Authority
from tests.support.containers import BASE, Container, tool
from tests.support.groups import Groups, Values
from tests.support.wait import wait_until

MEMORY = 512 << 20
LOCKED = [
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    f"--memory={MEMORY}",
    "--publish=127.0.0.1::2222",
    "--env=REDUCER_LANES=2",
    "--env=REDUCER_MEMORY=128MiB",
]


def with_key(key: str) -> list[str]:
    return [f"--volume={key}:/key:ro", "--env=REDUCER_KEY_FILE=/key"]


@pytest.fixture
def reducer(image: str, key: str) -> Iterator[Container]:
    with Container(image, options=[*LOCKED, *with_key(key)]) as container:
        wait_until(lambda: '"ready"' in container.log, 30, "ready")
        yield container


def megabytes(image: str) -> float:
    (found,) = json.loads(tool("podman", "image", "inspect", image).stdout)
    return float(found["Size"]) / 1e6


def test_it_is_small_and_holds_no_tools(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    size, base = megabytes(image), megabytes(BASE)
    with capsys.disabled():
        print(f"\nimage of a reducer: {size:.0f} MB, {size - base:.0f} MB of it beyond its base")
    assert size - base < 200
    tools = "cc c++ gcc g++ ld make cmake ninja pip pip3 mypy"
    look = f"for tool in {tools}; do command -v $tool; done; python3 -c 'import pip'"
    done = tool("podman", "run", "--rm", "--entrypoint=sh", image, "-c", look, check=False)
    assert not done.stdout
    assert "No module named 'pip'" in done.stderr


def test_its_labels_say_what_it_was_built_from(image: str) -> None:
    (found,) = json.loads(tool("podman", "image", "inspect", image).stdout)
    prefix = "org.opencontainers.image."
    for name, value in {**LABELS, "LICENSES": "Apache-2.0"}.items():
        assert found["Config"]["Labels"][prefix + name.lower()] == value


def test_locked_in_it_serves_workers_outside(reducer: Container, key: str) -> None:
    with Groups(3, [reducer.published(2222)], "image", key_file=key) as groups:
        for turn in range(3):
            groups.turn(Values(1, 3, 300_000), turn)
    status = reducer.execute("cat", "/proc/1/status").stdout
    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    for path in ("/x", "/opt/reducer/x", "/tmp/x"):
        assert "Read-only file system" in reducer.execute("touch", path).stderr
    assert reducer.inspect()["HostConfig"]["Memory"] == MEMORY


def test_in_mode_tls_it_serves_workers_outside(image: str, tmp_path: Path) -> None:
    """Its Python is Debian's, and older than the one of the other tests."""
    files = Authority(tmp_path / "certs").issue("127.0.0.1")
    Path(files.key).chmod(0o440)  # as the key of mode psk: ours, and the image's user may read it
    shutil.chown(files.key, 0, USER)
    mounts = [f"--volume={path}:/{name}:ro" for name, path in files.arguments.items()]
    names = [f"--env=REDUCER_{name.upper()}=/{name}" for name in files.arguments]
    with Container(image, options=[*LOCKED, *mounts, *names]) as container:
        wait_until(lambda: '"ready"' in container.log, 30, "ready")
        with Groups(2, [container.published(2222)], "image", **files.arguments) as groups:
            groups.turn(Values(1, 2, 1000), 0)


def test_its_health_is_asked(reducer: Container) -> None:
    assert tool("podman", "healthcheck", "run", reducer.id, check=False).returncode == 0


def test_sigterm_to_process_1_ends_it(reducer: Container, key: str) -> None:
    with Groups(2, [reducer.published(2222)], "image", key_file=key) as groups:
        groups.turn(Values(1, 2, 1000), 0)
    began = time.monotonic()
    tool("podman", "stop", "--time=10", reducer.id)
    assert time.monotonic() - began < 2
    assert reducer.inspect()["State"]["ExitCode"] == 0
    assert "drained" in reducer.log


def test_without_a_key_it_does_not_start(image: str) -> None:
    done = tool("podman", "run", "--rm", image, check=False)
    assert done.returncode == 2
    assert "--key-file (REDUCER_KEY_FILE)" in done.stderr
