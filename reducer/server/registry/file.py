"""The file with the registry's documents.

Laws:

- The file is always whole: a write makes a new file beside it, and renames that once the disk has
  it. So a file that is cut short or changed was not left by a crash, and is refused.
- One process at a time: a lock on ``FILE.lock`` is held as long as the file is open.

The file has a line of text, the length and the CRC-32C of the rest, and a msgpack map.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgpack  # type: ignore[import-untyped]  # ships no stubs
from google_crc32c import value as crc32c

from reducer.registry import limits
from reducer.registry.records import Contents, Document, Key
from reducer.wire.checks import INCARNATION_BYTES

_MAGIC = b"open-reduction-server registry 1\n"
_HEAD = struct.Struct("<II")
# The limits of the registry allow 16 MiB of documents with their overhead.
_MOST_BYTES = 2 * limits.MAX_BYTES
# A lane that was killed keeps the lock until the kernel has freed its memory.
LOCK_SECONDS = 5.0
_LOCK_INTERVAL = 0.02


class RegistryFileError(Exception):
    """The file cannot be used; the text gives the path, the reason and what to try."""


class RegistryFile:
    """An open registry. ``contents`` is what the file had when it was opened."""

    def __init__(self, path: str, lock_seconds: float = LOCK_SECONDS) -> None:
        """Open the file; make it if there is none. Raises RegistryFileError."""
        self._path = os.path.realpath(path)
        self._folder = os.path.dirname(self._path)
        try:
            self._lock = _lock(self._path + ".lock", lock_seconds)
        except OSError as error:
            raise self._unusable(f"cannot be opened: {error.strerror}") from None
        try:
            self.contents = self._read_or_make()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._lock)

    def write(self, floor: int, documents: Iterable[tuple[Key, Document]]) -> None:
        """Replace the documents. Raises OSError; the file then has the documents from before."""
        self._write(Contents(self.contents.incarnation, floor, dict(documents)))

    def _read_or_make(self) -> Contents:
        try:
            with open(self._path, "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            contents = Contents(secrets.token_bytes(INCARNATION_BYTES), 0, {})
            try:
                self._write(contents)
            except OSError as error:
                raise self._unusable(f"cannot be made: {error.strerror}") from None
            return contents
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from None
        if not data.startswith(_MAGIC):
            raise self._unusable(f"is no file of a registry: it begins with {data[:16]!r}")
        body = data[len(_MAGIC) + _HEAD.size :]
        if len(data) < len(_MAGIC) + _HEAD.size:
            raise self._unusable(f"is cut short: it has {len(data)} bytes")
        size, crc = _HEAD.unpack_from(data, len(_MAGIC))
        if size != len(body):
            raise self._unusable(f"is cut short: {len(body):,} of {size:,} bytes are there")
        if crc != crc32c(body):
            raise self._unusable("was changed: its CRC-32C does not match")
        try:
            return _unpack(body)
        except (ValueError, TypeError, KeyError) as error:
            raise self._unusable(f"has contents of another version: {error!r:.80}") from None

    def _unusable(self, what: str) -> RegistryFileError:
        return RegistryFileError(
            f"the registry's file {self._path} {what}. Give --registry (REDUCER_REGISTRY_FILE) a "
            "file in a folder of this reducer alone. To begin with an empty registry, move the "
            "file away: jobs that use the registry then lose their records"
        )

    def _write(self, contents: Contents) -> None:
        body = _pack(contents)
        new = f"{self._path}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", buffering=0) as file:
                for part in (_MAGIC + _HEAD.pack(len(body), crc32c(body)), body):
                    rest = memoryview(part)
                    while rest:
                        rest = rest[file.write(rest) :]
                os.fsync(fd)
            os.rename(new, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)  # a part of it would keep a full disk full
            raise
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check(path: str) -> None:
    """Raises RegistryFileError unless a registry can use the file; makes it if there is none."""
    RegistryFile(path).close()


def _lock(path: str, seconds: float) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_LOCK_INTERVAL)
                continue
            os.close(fd)
            raise OSError(0, "another reducer has it open") from None
        except BaseException:
            os.close(fd)
            raise


def _pack(contents: Contents) -> bytes:
    records = [
        (job, name, document.version, document.value, document.tokens)
        for (job, name), document in contents.documents.items()
    ]
    packed: bytes = msgpack.packb(
        {"incarnation": contents.incarnation, "floor": contents.floor, "records": records}
    )
    return packed


def _unpack(body: bytes) -> Contents:
    found = msgpack.unpackb(body, use_list=False)
    incarnation = _of_type(bytes, found["incarnation"])
    if len(incarnation) != INCARNATION_BYTES:
        raise ValueError(f"an incarnation of {len(incarnation)} bytes")
    documents = {
        (_of_type(str, job), _of_type(str, name)): Document(
            _of_type(int, version),
            _of_type(bytes, value),
            tuple(_of_type(bytes, token) for token in tokens),
        )
        for job, name, version, value, tokens in found["records"]
    }
    return Contents(incarnation, _of_type(int, found["floor"]), documents)


def _of_type(kind: Callable[..., Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind}, got {value!r:.40}")
    return value
