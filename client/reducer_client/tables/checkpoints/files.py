"""The files with the tensors, in the format of the library safetensors."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from reducer_client.tables.checkpoints import folder
from reducer_client.tables.checkpoints.errors import DamageError
from reducer_client.tables.checkpoints.image import Place, Vector, part_of

FILE_NAME: Final = re.compile(r"shards-\d{1,9}\.safetensors", re.ASCII)
_DTYPE: Final = "F32"  # the name that safetensors has for float32


class FileEntry(NamedTuple):
    """A file as the manifest describes it. ``size`` is in bytes, ``sha256`` hexadecimal."""

    name: str
    size: int
    sha256: str


def write_files(
    path: Path, tensors: Iterable[tuple[str, Vector]], limit: int
) -> tuple[FileEntry, ...]:
    """Write the tensors into files of at most ``limit`` bytes of elements, and sync each file.

    A tensor goes into one file, even if it exceeds the limit. Raises OSError.
    """
    return tuple(
        _write_file(path / f"shards-{number}.safetensors", group)
        for number, group in enumerate(_groups(tensors, limit))
    )


def _groups(tensors: Iterable[tuple[str, Vector]], limit: int) -> Iterator[dict[str, Vector]]:
    group: dict[str, Vector] = {}
    size = 0
    for name, tensor in tensors:
        if group and size + tensor.nbytes > limit:
            yield group
            group, size = {}, 0
        group[name] = tensor
        size += tensor.nbytes
    if group:
        yield group


def _write_file(path: Path, tensors: dict[str, Vector]) -> FileEntry:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise _as_os_error(error, path) from None
    # The library makes private files. The folder's mode has the umask of this process.
    path.chmod(path.parent.stat().st_mode & 0o666)
    folder.sync(path)
    return FileEntry(path.name, path.stat().st_size, digest(path))


def _as_os_error(error: SafetensorError, path: Path) -> OSError:
    """The OSError behind an error of safetensors, which has the errno only in its text."""
    # safetensors 0.8 writes the first form, safetensors 0.5 the second form.
    match = re.search(r"\(os error (\d+)\)|Os \{ code: (\d+)", str(error))
    if match is None:
        return OSError(0, str(error), str(path))
    number = int(match[1] or match[2])
    return OSError(number, os.strerror(number), str(path))


def digest(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, entry: FileEntry, *, verify: bool) -> None:
    """Compare a file's size, and with ``verify`` its SHA-256, with the manifest.

    Raises DamageError.
    """
    try:
        size = path.stat().st_size
        if size != entry.size:
            raise DamageError(f"{entry.name} has {size:,} bytes, expected {entry.size:,}")
        if verify and (found := digest(path)) != entry.sha256:
            raise DamageError(f"{entry.name} has SHA-256 {found}, expected {entry.sha256}")
    except FileNotFoundError:
        raise DamageError(f"{entry.name} is missing") from None
    except OSError as error:
        raise DamageError(f"{entry.name} cannot be read: {error.strerror}") from None


def read_files(
    path: Path, entries: Iterable[FileEntry], wanted: Mapping[str, tuple[Vector, Place]]
) -> None:
    """Copy each tensor of the files to its place in an array.

    Raises DamageError if the files do not have exactly the wanted tensors, as float32 and in the
    wanted shapes.
    """
    missing = dict(wanted)
    for entry in entries:
        try:
            _read_file(path / entry.name, missing)
        except (OSError, SafetensorError) as error:
            raise DamageError(f"{entry.name} cannot be read: {error}") from None
    if missing:
        raise DamageError(f"no file has the tensor {next(iter(missing))!r:.200}")


def _read_file(path: Path, missing: dict[str, tuple[Vector, Place]]) -> None:
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            if name not in missing:
                raise DamageError(
                    f"{path.name} has the tensor {name!r:.200}, which no table has, or another "
                    "file has it too"
                )
            vector, place = missing.pop(name)
            part = file.get_slice(name)
            dtype, shape = part.get_dtype(), tuple(part.get_shape())
            if (dtype, shape) != (_DTYPE, place.shape):
                raise DamageError(
                    f"{path.name}: the tensor {name!r:.200} is {dtype} of shape {shape}, "
                    f"expected {_DTYPE} of shape {place.shape}"
                )
            part_of(vector, place)[...] = file.get_tensor(name)
