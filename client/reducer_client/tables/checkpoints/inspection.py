"""Lists the checkpoints of a directory, as rows of a table."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from reducer_client.tables.checkpoints import folder
from reducer_client.tables.checkpoints.errors import CheckpointError, DamageError
from reducer_client.tables.checkpoints.loading import check_checkpoint


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint of a directory.

    Attributes:
        step: the number of the step.
        job: the name of the job, or None.
        tables: the names of the tables.
        parameters: the number of parameters of all tables, without the slots of the optimizers.
        size: the bytes of the files, without the manifest.
        age: seconds since the save; None if the checkpoint is damaged.
        latest: whether ``load`` takes this checkpoint by default.
        damage: the damage as text; "" for a good checkpoint. A damaged checkpoint has no job,
            tables, parameters and size.
    """

    step: int
    job: str | None
    tables: tuple[str, ...]
    parameters: int
    size: int
    age: float | None
    latest: bool
    damage: str


def inspect(
    directory: str | os.PathLike[str], *, verify: bool = False, now: float | None = None
) -> list[CheckpointRow]:
    """The checkpoints of a directory, by step.

    Compares the sizes of the files with the manifests, and with ``verify`` the SHA-256 of every
    file. ``now`` is the time from which ages count, in Unix seconds, by default this moment.

    Raises CheckpointError if the directory, or its file ``latest``, cannot be read.
    """
    place = Path(directory)
    now = time.time() if now is None else now
    try:
        latest = folder.read_latest(place)
        steps = folder.list_steps(place)
    except DamageError as damage:
        raise CheckpointError(f"in {place} {damage}", reason="damaged") from None
    except OSError as error:
        raise CheckpointError(
            f"the directory of checkpoints {place} cannot be read: {error.strerror}",
            reason="missing",
        ) from None
    return [_row(place, step, step == latest, verify, now) for step in steps]


def _row(directory: Path, step: int, latest: bool, verify: bool, now: float) -> CheckpointRow:
    try:
        found = check_checkpoint(directory, step, verify=verify)
    except DamageError as damage:
        return CheckpointRow(step, None, (), 0, 0, None, latest, str(damage))
    names = tuple(table.name for table in found.tables)
    age = max(0.0, now - found.saved)
    return CheckpointRow(
        step, found.job, names, found.parameters, found.size, age, latest, damage=""
    )
