"""The directory of checkpoints: its names, and how a checkpoint is added and removed.

Laws:

- A folder ``step-N`` is whole. A save fills ``step-N.tmp``, and renames it once the disk has every
  file. A removal renames ``step-N`` back before it removes the first file.
- ``latest`` is a file of one line, the name of the checkpoint that was saved last. A rename
  replaces the file, after the disk has the checkpoint under its name.
- A name that ends in ``.tmp`` belongs to one save or removal. The holder of the lock may remove
  leftovers with such names, since no other save is alive then.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from reducer_client.tables.checkpoints.errors import CheckpointError, DamageError

LATEST: Final = "latest"
_LOCK: Final = ".lock"
_STEP: Final = re.compile(r"step-(0|[1-9]\d{0,18})", re.ASCII)
_LEFTOVER: Final = re.compile(r"(step-\d+(\.old)?|latest)\.tmp", re.ASCII)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_AT_FDCWD: Final = -100  # linux/fcntl.h
_RENAME_EXCHANGE: Final = 2  # linux/fs.h


def step_name(step: int) -> str:
    return f"step-{step}"


def list_steps(directory: Path) -> list[int]:
    """The steps of all checkpoints, in ascending order. Raises OSError."""
    matches = (_STEP.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in matches if match)


def read_latest(directory: Path) -> int | None:
    """The step that ``latest`` names; None without such a file. Raises DamageError."""
    try:
        with (directory / LATEST).open("rb") as file:
            text = file.read(100).decode("ascii", "backslashreplace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamageError(f"the file {LATEST} cannot be read: {error.strerror}") from None
    if not (match := _STEP.fullmatch(text.removesuffix("\n"))):
        raise DamageError(f"the file {LATEST} has {text!r:.60}, expected a name such as 'step-100'")
    return int(match[1])


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Hold the directory's lock. Raises CheckpointError if another process holds it, and OSError.

    The kernel frees the lock of a process that dies. On a file system without locks, nothing is
    held.
    """
    fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another save to {directory} is under way. Let one worker save, or give each job "
                "a directory of its own",
                reason="busy",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(fd)


def begin(directory: Path, step: int) -> Path:
    """Make the empty folder for a new checkpoint. The caller holds the lock. Raises OSError."""
    remove_leftovers(directory)
    folder = directory / f"{step_name(step)}.tmp"
    folder.mkdir()
    return folder


def publish(directory: Path, step: int) -> Path:
    """Give the filled folder its name, in place of a checkpoint of the same step; returns its path.

    The files of the folder must be on the disk already. Raises OSError; ``latest`` then names the
    same checkpoint as before.
    """
    folder, place = directory / f"{step_name(step)}.tmp", directory / step_name(step)
    new_latest = directory / f"{LATEST}.tmp"
    sync(folder)
    write(new_latest, f"{step_name(step)}\n".encode())
    if place.exists():
        _replace(place, folder)
    else:
        folder.rename(place)
    sync(directory)
    new_latest.rename(directory / LATEST)
    sync(directory)
    remove_leftovers(directory)
    return place


def remove(directory: Path, step: int) -> None:
    """Remove a checkpoint. The caller holds the lock. Raises OSError."""
    leftover = directory / f"{step_name(step)}.tmp"
    (directory / step_name(step)).rename(leftover)
    shutil.rmtree(leftover)


def remove_leftovers(directory: Path) -> None:
    """Remove the leftovers of dead saves. The caller holds the lock. Raises OSError."""
    for name in filter(_LEFTOVER.fullmatch, os.listdir(directory)):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def try_to_remove_leftovers(directory: Path) -> None:
    """Remove the leftovers after an error; an error of the removal is less important."""
    with suppress(OSError):
        remove_leftovers(directory)


def write(path: Path, data: bytes) -> None:
    """Write a new file, and wait until the disk has it. Raises OSError."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until the disk has the file's bytes, or the folder's names. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _replace(place: Path, new: Path) -> None:
    """Put ``new`` in place of an older folder, which becomes a leftover.

    Where the file system cannot exchange two names (NFS), there is a moment without a checkpoint of
    this step.
    """
    try:
        _exchange(place, new)
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
        old = place.with_name(f"{place.name}.old.tmp")
        place.rename(old)
        try:
            new.rename(place)
        except BaseException:
            old.rename(place)
            raise


def _exchange(one: Path, other: Path) -> None:
    """Exchange two names in one step, which Python's ``os`` cannot do. Raises OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = os.fsencode(one), os.fsencode(other)
    if function(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))
