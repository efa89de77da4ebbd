"""``manifest.json``: the list of a checkpoint's tables and files.

The manifest has a format number and a SHA-256 of its own, so a reader refuses a manifest that was
changed. A reader accepts no file names but ``shards-I.safetensors``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reducer.optimizers import OptimizerError, from_fields, to_fields
from reducer_client.tables.checkpoints.errors import CheckpointError, DamageError
from reducer_client.tables.checkpoints.files import FILE_NAME, FileEntry
from reducer_client.tables.checkpoints.image import Description, as_json

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
_DTYPE: Final = "float32"


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest. ``saved``: when the save began, in Unix seconds."""

    step: int
    job: str | None
    saved: float
    tables: tuple[Description, ...]
    files: tuple[FileEntry, ...]

    @property
    def parameters(self) -> int:
        """The number of parameters of all tables, without the slots."""
        return sum(table.count for table in self.tables)

    @property
    def size(self) -> int:
        """The bytes of all files, without the manifest."""
        return sum(file.size for file in self.files)


def check_names(tables: Iterable[Description]) -> None:
    """Raises CheckpointError if two tables, or two tensors of the files, have one name."""
    names: set[str] = set()
    stored: set[str] = set()
    for table in tables:
        if table.name in names:
            raise CheckpointError(f"two tables have the name {table.name!r}")
        names.add(table.name)
        for name, _ in table.places():
            if name in stored:
                raise CheckpointError(
                    f"table {table.name!r}: the files would have two tensors {name!r:.200}; "
                    "rename the table or a tensor"
                )
            stored.add(name)


def to_text(manifest: Manifest) -> str:
    fields: dict[str, Any] = {
        "format": FORMAT,
        "step": manifest.step,
        "job": manifest.job,
        "saved": manifest.saved,
        "tables": [_table_fields(table) for table in manifest.tables],
        "files": [file._asdict() for file in manifest.files],
    }
    return json.dumps({**fields, "sha256": _digest(fields)}, indent=1) + "\n"


def read_manifest(folder: Path, step: int) -> Manifest:
    """The manifest of the checkpoint in a folder. Raises no error but DamageError."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DamageError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise DamageError(f"{MANIFEST} cannot be read: {error.strerror}") from None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{MANIFEST} is no JSON: {error}") from None
    try:
        return _from_fields(fields, step)
    except (CheckpointError, OptimizerError, OverflowError, RecursionError) as error:
        raise DamageError(f"{MANIFEST}: {error}") from None


def _from_fields(fields: Any, step: int) -> Manifest:
    _check_format(fields)
    if (found := _take(fields, "step", int)) != step:
        raise DamageError(f"{MANIFEST} is of step {found}, expected {step}")
    job = fields.get("job")
    if job is not None and not isinstance(job, str):
        raise DamageError(f"{MANIFEST}: job must be a text or null, got {job!r:.60}")
    tables = tuple(map(_table, _take(fields, "tables", list)))
    check_names(tables)
    files = tuple(map(_file, _take(fields, "files", list)))
    if len({file.name for file in files}) != len(files):
        raise DamageError(f"{MANIFEST} names a file twice")
    return Manifest(step, job, float(_take(fields, "saved", int, float)), tables, files)


def _check_format(fields: Any) -> None:
    found = _take(fields, "format", int)
    if found != FORMAT:
        newer = found > FORMAT
        raise DamageError(
            f"{MANIFEST} has format {found}, "
            + ("which is newer than this program: update it" if newer else "which never existed")
            + f" (this program reads format {FORMAT})"
        )
    rest = {name: value for name, value in fields.items() if name != "sha256"}
    expected = _take(fields, "sha256", str)
    try:
        actual = _digest(rest)
    except ValueError as error:
        raise DamageError(f"{MANIFEST} was changed: {error}") from None
    if actual != expected:
        raise DamageError(
            f"{MANIFEST} was changed: its fields have SHA-256 {actual}, expected {expected:.64}"
        )


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(as_json(fields).encode()).hexdigest()


def _table_fields(table: Description) -> dict[str, Any]:
    return {
        "name": table.name,
        "dtype": _DTYPE,
        "tensors": [[name, list(shape)] for name, shape in table.tensors],
        "optimizer": to_fields(table.optimizer),
        "mode": dict(table.mode),
        "state": dict(table.state),
    }


def _table(fields: Any) -> Description:
    name, dtype = _take(fields, "name", str), _take(fields, "dtype", str)
    if dtype != _DTYPE:
        raise DamageError(f"{MANIFEST}: table {name!r:.60} is {dtype!r:.60}, expected {_DTYPE}")
    return Description(
        name,
        _take(fields, "tensors", list),
        from_fields(_take(fields, "optimizer", dict)),
        _take(fields, "mode", dict),
        _take(fields, "state", dict),
    )


def _file(fields: Any) -> FileEntry:
    entry = FileEntry(
        _take(fields, "name", str), _take(fields, "size", int), _take(fields, "sha256", str)
    )
    if not FILE_NAME.fullmatch(entry.name):
        raise DamageError(
            f"{MANIFEST} names a file {entry.name!r:.60}, expected a name such as "
            "'shards-0.safetensors'"
        )
    return entry


def _take(fields: Any, name: str, *kinds: type) -> Any:
    """The value of a field. Raises DamageError if it is missing or of another type."""
    if not isinstance(fields, dict):
        raise DamageError(f"{MANIFEST}: expected a mapping, got {fields!r:.60}")
    if name not in fields:
        raise DamageError(f"{MANIFEST} lacks the field {name!r}")
    value = fields[name]
    if type(value) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise DamageError(f"{MANIFEST}: {name} must be {expected}, got {value!r:.60}")
    return value
