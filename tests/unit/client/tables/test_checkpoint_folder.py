"""What a directory of checkpoints keeps, what a save removes, and what a disk may refuse."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reducer_client.tables.checkpoints import (
    CheckpointError,
    SavePolicy,
    folder,
    inspect,
    load,
    save,
    saving,
)
from tests.support.folders import folder_in_memory
from tests.support.table_images import contents, image

ROOT = Path(__file__).parents[4]


@pytest.fixture
def directory() -> Iterator[Path]:
    with folder_in_memory() as path:
        yield path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each save begins a second after the one before, whatever the clock of this machine does."""
    ticks = iter(range(1_000, 10_000))
    monkeypatch.setattr(saving.time, "time", lambda: float(next(ticks)))


def entries(directory: Path) -> set[str]:
    return set(os.listdir(directory)) - {".lock"}


def steps_after(directory: Path, *steps: int, keep: int | None = None) -> list[int]:
    for step in steps:
        save(directory, step, [image(step)], keep=keep)
        assert contents(load(directory)) == contents([image(step)])
    return folder.list_steps(directory)


@pytest.mark.usefixtures("clock")
def test_only_the_newest_are_kept(directory: Path) -> None:
    assert steps_after(directory, 1, 2, 3, 4) == [1, 2, 3, 4]
    assert steps_after(directory, 10, keep=3) == [3, 4, 10]
    assert steps_after(directory, 11, keep=1) == [11]


@pytest.mark.usefixtures("clock")
def test_who_goes_back_keeps_what_is_saved_from_then_on(directory: Path) -> None:
    steps_after(directory, 100, 200, 300)
    assert contents(load(directory, 200)) == contents([image(200)])
    assert steps_after(directory, 210, 220, keep=3) == [210, 220, 300]
    assert steps_after(directory, 230, keep=3) == [210, 220, 230]


def test_a_damaged_checkpoint_and_foreign_files_are_not_removed(directory: Path) -> None:
    steps_after(directory, 1, 2, 3)
    (directory / "step-2" / "manifest.json").write_text("{}")
    others = {"step-04", "step-5x", "notes.tmp", "step-1.txt"}
    for name in others:
        (directory / name).mkdir()
    assert steps_after(directory, 4, keep=1) == [2, 4]
    assert entries(directory) == {"latest", "step-2", "step-4", *others}
    assert [row.damage != "" for row in inspect(directory)] == [True, False]


def test_a_step_that_exists_is_replaced(directory: Path) -> None:
    steps_after(directory, 1, 2)
    save(directory, 1, [image(7)])
    assert contents(load(directory)) == contents([image(7)])
    assert entries(directory) == {"latest", "step-1", "step-2"}


def test_a_step_is_replaced_where_two_names_cannot_be_exchanged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS."""

    def refuse(one: Path, other: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(folder, "_exchange", refuse)
    test_a_step_that_exists_is_replaced(directory)


def test_leftovers_of_dead_saves_are_removed(directory: Path) -> None:
    steps_after(directory, 1)
    for name in ("step-2.tmp", "step-1.old.tmp"):
        (directory / name).mkdir()
        (directory / name / "shards-0.safetensors").write_bytes(b"x")
    (directory / "latest.tmp").write_text("step-2\n")
    (directory / "step-9.tmp").symlink_to(directory / "step-1")
    assert steps_after(directory, 2) == [1, 2]
    assert entries(directory) == {"latest", "step-1", "step-2"}


def test_two_saves_at_once_do_not_disturb_each_other(directory: Path) -> None:
    steps_after(directory, 1)
    (directory / "step-2.tmp").mkdir()
    with (directory / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"another save to .* is under way") as caught:
            save(directory, 2, [image()])
    assert caught.value.reason == "busy"
    assert entries(directory) == {"latest", "step-1", "step-2.tmp"}


def refused(directory: Path, error: str, **arguments: Any) -> None:
    with pytest.raises(CheckpointError, match=error) as caught:
        save(directory, 3, [image(3)], **arguments)
    assert (caught.value.reason, caught.value.step) == ("disk", 3)
    assert "The checkpoints from before are unchanged." in str(caught.value)


@pytest.mark.parametrize("size", [0, 100, 500])
def test_a_file_that_cannot_grow_leaves_nothing_behind(directory: Path, size: int) -> None:
    steps_after(directory, 1, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        refused(directory, r"step-3 was not saved in .*: File too large \(.*\)\..* Free space")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert entries(directory) == {"latest", "step-1", "step-2"}
    assert contents(load(directory)) == contents([image(2)])


_ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from tests.unit.client.tables import test_checkpoint_folder
test_checkpoint_folder.on_a_small_disk(Path(sys.argv[1]))
"""


def on_a_small_disk(directory: Path) -> None:
    """Save until the disk is full, then with ``keep``."""
    large = (("w", (20_000,)),)  # 240 kB with the slots of Adam

    def save_large(step: int, keep: int | None = None) -> None:
        save(directory, step, [image(step, tensors=large)], keep=keep)

    with pytest.raises(CheckpointError, match=r"No space left on device .* Free space") as caught:
        for step in range(100):
            save_large(step)
    step = caught.value.step
    assert step == 4
    assert entries(directory) == {"latest", *(f"step-{number}" for number in range(step))}
    assert contents(load(directory)) == contents([image(3, tensors=large)])
    assert not any(row.damage for row in inspect(directory, verify=True))
    folder.remove(directory, 0)
    for step in range(4, 20):
        save_large(step, keep=3)
    assert contents(load(directory)) == contents([image(19, tensors=large)])
    assert folder.list_steps(directory) == [17, 18, 19]
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
    refused(directory, "Read-only file system .* Give a directory that this user may write to")


# A namespace of users lets others than root mount, where the kernel allows it.
_UNSHARE = ["unshare", "--mount", "--propagation", "private"]
_UNSHARE += ["--map-root-user"] if os.geteuid() else []


def _may_mount() -> bool:
    probe = [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace of its own (root)")
def test_a_full_disk_leaves_the_checkpoints_from_before(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=1000k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    subprocess.run(
        [*_UNSHARE, "sh", "-ec", script, "sh", tmp_path, sys.executable, _ON_A_SMALL_DISK],
        check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert not os.listdir(tmp_path)


def test_a_directory_that_is_missing_or_no_directory(directory: Path) -> None:
    refused(directory / "none", r"No such file or directory \(.*\)\. .* Make the directory .*none")
    (directory / "file").touch()
    refused(directory / "file", r"Not a directory .* Make the directory")


def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    user = os.geteuid()
    tmp_path.chmod(0o500)
    if user == 0:
        os.seteuid(65534)
    try:
        refused(tmp_path, r"Permission denied .* Give a directory that this user may write to")
    finally:
        os.seteuid(user)


def test_old_checkpoints_that_cannot_be_removed_do_not_fail_a_save(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps_after(directory, 1)

    def refuse(directory: Path, step: int) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(folder, "remove", refuse)
    assert steps_after(directory, 2, keep=1) == [1, 2]
    assert "old checkpoints in" in caplog.text and "cannot be removed" in caplog.text


def test_a_save_is_due_after_steps_or_seconds() -> None:
    policy = SavePolicy(every_steps=100, every_seconds=60)
    assert not policy.due(7, 1_000.0)  # counting begins
    assert not policy.due(106, 1_059.9) and policy.due(107, 1_001.0) and policy.due(8, 1_060.0)
    policy.saved(107, 1_050.0)
    assert not policy.due(206, 1_109.0) and policy.due(207, 1_050.0) and policy.due(500, 1_050.0)
    assert policy.due(108, 1_110.0) and not policy.due(107, 9_999.0)


def test_a_policy_may_have_one_measure_or_none() -> None:
    steps, seconds, never = SavePolicy(every_steps=2), SavePolicy(every_seconds=0.5), SavePolicy()
    for policy in (steps, seconds, never):
        policy.saved(10, 0.0)
    assert [p.due(11, 1e9) for p in (steps, seconds, never)] == [False, True, False]
    assert [p.due(10**9, 0.1) for p in (steps, seconds, never)] == [True, False, False]


@pytest.mark.parametrize(
    "arguments",
    [
        {"every_steps": 0},
        {"every_steps": 1.5},
        {"every_seconds": 0},
        {"every_seconds": float("nan")},
        {"every_seconds": float("inf")},
        {"keep": 0},
    ],
)
def test_a_policy_that_means_nothing_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(arguments))):
        SavePolicy(**arguments)
