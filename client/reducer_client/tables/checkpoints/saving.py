"""Saves checkpoints."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, SupportsIndex

from reducer_client.tables.checkpoints import folder
from reducer_client.tables.checkpoints.errors import CheckpointError
from reducer_client.tables.checkpoints.files import write_files
from reducer_client.tables.checkpoints.image import TableImage, as_index
from reducer_client.tables.checkpoints.loading import by_age, good_manifests
from reducer_client.tables.checkpoints.manifest import MANIFEST, Manifest, check_names, to_text

FILE_LIMIT: Final = 1 << 30
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)

logger = logging.getLogger("reducer_client.tables")


def save(
    directory: str | os.PathLike[str],
    step: SupportsIndex,
    tables: Sequence[TableImage],
    *,
    job: str | None = None,
    keep: int | None = None,
    file_limit: int = FILE_LIMIT,
) -> Path:
    """Save the tables as the checkpoint ``step-N`` of a directory, and return its path.

    A kill of this process leaves the whole checkpoint or none. When this function returns, the disk
    has the checkpoint, and ``load`` finds it. A checkpoint replaces an older one of the same step.

    Args:
        directory: an existing directory, for one job alone. It needs space for one checkpoint more
            than it keeps.
        step: the number of the step, from 0 on.
        tables: at least one table. Their arrays must not change meanwhile.
        job: the name of the job, for the reader of the manifest.
        keep: after the save, remove the oldest good checkpoints beyond this number (at least 1).
            None removes none. A damaged checkpoint is neither counted nor removed.
        file_limit: bytes of elements in a file, at least 1. Only a larger tensor exceeds it.

    Raises CheckpointError if an argument is not valid, if the directory is missing or cannot be
    written, if the disk is full, or if another save to the directory is under way. All checkpoints
    that were there before are then unchanged.
    """
    place = Path(directory)
    number = as_index("the number of the step", step, 0)
    _check_arguments(tables, job, keep, file_limit)
    try:
        with folder.locked(place):
            path = _save_new(place, number, tables, job, file_limit)
            if keep is not None:
                _remove_oldest(place, number, keep)
            return path
    except OSError as error:
        raise _refusal(place, number, error) from None


def _check_arguments(
    tables: Sequence[TableImage], job: str | None, keep: int | None, file_limit: int
) -> None:
    if not tables:
        raise CheckpointError("a checkpoint needs at least one table, got none")
    check_names(table.description for table in tables)
    if job is not None and not isinstance(job, str):
        raise CheckpointError(f"job must be a text or None, got {job!r:.60}")
    if keep is not None:
        as_index("keep", keep, 1)
    as_index("file_limit", file_limit, 1)


def _save_new(
    directory: Path, step: int, tables: Sequence[TableImage], job: str | None, limit: int
) -> Path:
    began = time.time()
    try:
        new = folder.begin(directory, step)
        stored = (pair for table in tables for pair in table.stored())
        files = write_files(new, stored, limit)
        described = tuple(table.description for table in tables)
        manifest = Manifest(step, job, began, described, files)
        folder.write(new / MANIFEST, to_text(manifest).encode())
        return folder.publish(directory, step)
    except BaseException:
        folder.try_to_remove_leftovers(directory)  # the partial files would keep a full disk full
        raise


def _remove_oldest(directory: Path, new: int, keep: int) -> None:
    """Remove the oldest checkpoints. An error is only logged: the new checkpoint is in place."""
    try:
        others = [found for found in good_manifests(directory) if found.step != new]
        for manifest in sorted(others, key=by_age, reverse=True)[keep - 1 :]:
            folder.remove(directory, manifest.step)
    except OSError as error:
        logger.warning("old checkpoints in %s cannot be removed: %s", directory, error)


def _refusal(directory: Path, step: int, error: OSError) -> CheckpointError:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        advice = "Free space, or give a smaller keep"
    elif error.errno in _FORBIDDEN:
        advice = "Give a directory that this user may write to"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        advice = f"Make the directory {directory} first"
    else:
        advice = "Check the disk"
    return CheckpointError(
        f"{folder.step_name(step)} was not saved in {directory}: {error.strerror}{where}. "
        f"The checkpoints from before are unchanged. {advice}",
        reason="disk",
        step=step,
    )
