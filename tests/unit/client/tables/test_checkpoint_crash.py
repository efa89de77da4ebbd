"""A save that is killed anywhere leaves the checkpoint from before, or is complete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reducer_client.tables.checkpoints import folder, inspect, load, save
from tests.support import checkpoint_saver
from tests.support.folders import folder_in_memory
from tests.support.table_images import contents, image

ROOT = Path(__file__).parents[4]
FILE_POINTS = 8


@pytest.fixture
def directory() -> Iterator[Path]:
    with folder_in_memory() as path:
        yield path


@pytest.fixture
def killed_save(directory: Path) -> Iterator[Callable[[str, int], list[int]]]:
    """Lets a child save until it is killed, and returns the answer of the support module."""
    command = [sys.executable, "-m", "tests.support.checkpoint_saver", str(directory)]
    paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(how: str, amount: int) -> list[int]:
            stdin.write(f"{how} {amount}\n")
            stdin.flush()
            return [int(word) for word in stdout.readline().split()]

        yield ask


def loaded_version(directory: Path) -> int:
    """The version that a load gives; all its bits are right."""
    tables = load(directory)
    version: int = tables[0].state["version"]
    assert contents(tables) == contents([checkpoint_saver.table(version)])
    return version


def test_a_kill_anywhere_leaves_the_last_complete_checkpoint(
    directory: Path, killed_save: Callable[[str, int], list[int]]
) -> None:
    last = -3
    for _ in range(2):  # the first time there are no old checkpoints to remove
        checkpoint_saver.save(str(directory), checkpoint_saver.after_restart(last))
        first, last, calls, _ = killed_save("calls", 0)
        assert last == first + 1 and loaded_version(directory) == last
    size = (directory / f"step-{last // 2}" / "manifest.json").stat().st_size  # the largest file
    points = [("calls", number) for number in range(1, calls + 1)]
    points += [("bytes", number * size // FILE_POINTS) for number in range(FILE_POINTS)]
    assert len(points) >= 50
    ends = set()
    for how, amount in points:
        before = checkpoint_saver.after_restart(last)
        checkpoint_saver.save(str(directory), before)
        first, last, _, number = killed_save(how, amount)
        assert number == (signal.SIGKILL if how == "calls" else signal.SIGXFSZ), (how, amount)
        found = loaded_version(directory)
        saved = before if last < first else last
        assert found in (saved, last + 1), (how, amount)
        assert not any(row.damage for row in inspect(directory, verify=True)), (how, amount)
        ends.add((last >= first, found > saved))
    # Kills came in both saves, and both before and after the new checkpoint was in place.
    assert len(ends) == 4
    checkpoint_saver.save(str(directory), checkpoint_saver.after_restart(last))
    assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]
    assert len(folder.list_steps(directory)) == checkpoint_saver.KEEP


def test_the_disk_has_the_files_before_their_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may undo all that was not synced, and keep a later rename."""
    done: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename")}

    def fsync(fd: int) -> None:
        done.append(("sync", os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path)))
        real["fsync"](fd)

    def rename(source: Any, target: Any) -> None:
        done.append(("rename", os.path.relpath(target, tmp_path)))
        real["rename"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    save(tmp_path, 5, [image()], file_limit=150)
    named = done.index(("rename", "step-5"))
    synced = {name for what, name in done[:named] if what == "sync"}
    files = {f"step-5.tmp/{name}" for name in os.listdir(tmp_path / "step-5")}
    assert len(files) > 2 and synced == {*files, "step-5.tmp", "latest.tmp"}
    assert done[named + 1 :] == [("sync", "."), ("rename", "latest"), ("sync", ".")]
