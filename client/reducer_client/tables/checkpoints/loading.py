"""Loads checkpoints, and finds the good ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from reducer_client.tables.checkpoints import folder
from reducer_client.tables.checkpoints.errors import CheckpointError, DamageError
from reducer_client.tables.checkpoints.files import check_file, read_files
from reducer_client.tables.checkpoints.image import Description, TableImage, as_index
from reducer_client.tables.checkpoints.manifest import MANIFEST, Manifest, read_manifest


def load(directory: str | os.PathLike[str], step: SupportsIndex | None = None) -> list[TableImage]:
    """The tables of a checkpoint, by default of the last checkpoint.

    The size and the SHA-256 of every file are checked first. The arrays are new and may be changed.

    Raises CheckpointError if the directory has no such checkpoint, or if the checkpoint is damaged.
    The error says what is wrong, and names the newest good checkpoint (``good_step``).
    """
    place = Path(directory)
    steps = _steps(place)
    number = _latest(place, steps) if step is None else as_index("step", step, 0)
    name = folder.step_name(number)
    if number not in steps:
        named = f", which the file {folder.LATEST} names" if step is None else ""
        raise _with_good_step(place, number, f"{name} is not in {place}{named}", "missing")
    try:
        return _read(place / name, check_checkpoint(place, number, verify=True))
    except DamageError as damage:
        text = f"{name} in {place} is damaged: {damage}"
        raise _with_good_step(place, number, text, "damaged") from None


def check_checkpoint(directory: Path, step: int, *, verify: bool) -> Manifest:
    """The manifest of a checkpoint whose files have the right sizes, and with ``verify`` hashes.

    Raises DamageError.
    """
    path = directory / folder.step_name(step)
    manifest = read_manifest(path, step)
    for file in manifest.files:
        check_file(path / file.name, file, verify=verify)
    return manifest


def good_manifests(directory: Path) -> Iterator[Manifest]:
    """The manifests of all checkpoints whose files have the right sizes. Raises OSError."""
    for step in folder.list_steps(directory):
        try:
            yield check_checkpoint(directory, step, verify=False)
        except DamageError:
            continue


def by_age(manifest: Manifest) -> tuple[float, int]:
    """Sorts from the oldest checkpoint to the newest.

    The step alone does not tell: after a return to step 200 and a save of step 210, step 300 is
    older than step 210.
    """
    return manifest.saved, manifest.step


def _steps(directory: Path) -> list[int]:
    try:
        return folder.list_steps(directory)
    except OSError as error:
        raise CheckpointError(
            f"the directory of checkpoints {directory} cannot be read: {error.strerror}",
            reason="missing",
        ) from None


def _latest(directory: Path, steps: list[int]) -> int:
    """The step of the checkpoint that was saved last.

    Without ``latest``, the newest checkpoint counts: the first save was killed just before its
    end, or somebody copied the folders alone.
    """
    try:
        step = folder.read_latest(directory)
    except DamageError as damage:
        raise _with_good_step(directory, None, f"in {directory} {damage}", "damaged") from None
    if step is not None:
        return step
    if not steps:
        raise CheckpointError(f"there is no checkpoint in {directory}", reason="missing")
    newest = max(good_manifests(directory), key=by_age, default=None)
    return steps[-1] if newest is None else newest.step


def _with_good_step(directory: Path, step: int | None, text: str, reason: str) -> CheckpointError:
    """An error that offers the newest good checkpoint other than ``step``."""
    good = _newest_good(directory, step)
    if good is None:
        offer = "no other checkpoint is good"
    else:
        offer = f"the newest good checkpoint is {folder.step_name(good)}: load(step={good})"
    return CheckpointError(f"{text}; {offer}", reason=reason, step=step, good_step=good)


def _newest_good(directory: Path, without: int | None) -> int | None:
    for manifest in sorted(good_manifests(directory), key=by_age, reverse=True):
        try:
            if manifest.step != without:
                return check_checkpoint(directory, manifest.step, verify=True).step
        except DamageError:
            continue
    return None


def _read(path: Path, manifest: Manifest) -> list[TableImage]:
    """The tables of a checkpoint whose files have been checked."""
    _check_size(manifest)
    images = [_empty(table) for table in manifest.tables]
    wanted = {
        name: (image.parameters if place.slot is None else image.slots[place.slot], place)
        for image in images
        for name, place in image.description.places()
    }
    read_files(path, manifest.files, wanted)
    return images


def _check_size(manifest: Manifest) -> None:
    """Raises DamageError unless the files are as large as the tables' arrays.

    Called before memory is allocated.
    """
    needed = sum(4 * table.count * (1 + len(table.slots)) for table in manifest.tables)
    if needed > manifest.size:
        raise DamageError(
            f"{MANIFEST} describes {needed:,} bytes of tensors; the files have {manifest.size:,}"
        )


def _empty(table: Description) -> TableImage:
    return TableImage(
        table.name,
        table.tensors,
        table.optimizer,
        np.empty(table.count, np.float32),
        {slot: np.empty(table.count, np.float32) for slot in table.slots},
        table.mode,
        table.state,
    )
