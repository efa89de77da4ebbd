"""Key files: one line of base64url text, with the reducers' key or (``job-key:``) a job's key.

A reducer needs the reducers' key (PROTOCOL.md calls it the master key). A worker needs only the key
of its job, which is derived from the reducers' key and is valid for no other job. No message, log
line or exception of this module contains a byte of a key.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import secrets
import stat
from collections.abc import Generator

from reducer.wire.handshake import JOB_KEY_BYTES, MAX_KEY_BYTES, MIN_KEY_BYTES, job_key

NEW_KEY_BYTES = 32
_JOB_PREFIX = b"job-key:"
# The text of the largest key and line ends. A longer file still gives a key that is too long.
_MAX_TEXT = len(_JOB_PREFIX) + MAX_KEY_BYTES * 4 // 3 + 8
_BASE64 = re.compile(rb"[A-Za-z0-9_-]+={0,2}")


class KeyFileError(ValueError):
    """A key file cannot be used or written; the text names the file, the reason and what to do."""


def make(path: str) -> None:
    """Write a random key of reducers to a new file of mode 0600; raises KeyFileError."""
    _write_new(path, text_of(secrets.token_bytes(NEW_KEY_BYTES)))


def make_for_job(path: str, job: str, master: str) -> None:
    """Derive the key of `job` from the key file `master`, and write it to a new file.

    Raises KeyFileError.
    """
    _write_new(path, text_for_job(job_key(read(master), job)))


def text_of(key: bytes) -> bytes:
    """The line of a file with the reducers' key."""
    return base64.urlsafe_b64encode(key)


def text_for_job(key: bytes) -> bytes:
    """The line of a file with the key of one job."""
    return _JOB_PREFIX + base64.urlsafe_b64encode(key)


def in_memory(text: bytes) -> int:
    """The descriptor of a new key file in memory, which no other user can open.

    The caller closes the descriptor. The file's path is ``/proc/PID/fd/DESCRIPTOR``.
    """
    fd = os.memfd_create("reducer-key", os.MFD_CLOEXEC)
    os.fchmod(fd, 0o600)
    os.write(fd, text + b"\n")
    return fd


def _write_new(path: str, text: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if os.path.isdir(path):
            raise KeyFileError(
                f"key file {path} is a folder: name a file in it, such as "
                f"{os.path.join(path, 'reducer.key')}"
            ) from None
        raise KeyFileError(
            f"key file {path} exists and is not overwritten: remove it first, or name another file "
            "(every worker and reducer must get the new key)"
        ) from None
    except OSError as error:
        raise KeyFileError(f"key file {path}: {error.strerror}") from None
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # whatever the umask
            file.write(text + b"\n")
    except OSError as error:
        os.unlink(path)
        raise KeyFileError(f"key file {path}: {error.strerror}") from None


def read(path: str) -> bytes:
    """Read the reducers' key; raises KeyFileError, also if others can access the file."""
    text = _read_text(path)
    if text.startswith(_JOB_PREFIX):
        raise KeyFileError(
            f"key file {path} has the key of one job, which is for workers; expected the "
            "reducers' key, from which it was made (reducer keygen without --job)"
        )
    return _decode(path, text)


def read_for_job(path: str, job: str) -> bytes:
    """Read the key of ``job`` from a file with the reducers' key or with a job's key.

    Raises KeyFileError.
    """
    text = _read_text(path)
    if not text.startswith(_JOB_PREFIX):
        return job_key(_decode(path, text), job)
    key = _decode(path, text[len(_JOB_PREFIX) :])
    if len(key) != JOB_KEY_BYTES:
        raise KeyFileError(
            f"key file {path}: the job's key has {len(key)} bytes, expected {JOB_KEY_BYTES}; "
            "`reducer keygen --job` makes one"
        )
    return key


def check_private(path: str) -> None:
    """Raises KeyFileError if a file with a key of any kind is missing or others can access it."""
    with _opened(path, ""):
        pass


def _read_text(path: str) -> bytes:
    with _opened(path, "; `reducer keygen` makes one") as fd:
        return os.read(fd, _MAX_TEXT).strip()


@contextlib.contextmanager
def _opened(path: str, hint: str) -> Generator[int]:
    try:
        # Follow symbolic links: Kubernetes mounts secrets as links. Check the opened file itself,
        # which nobody can exchange. O_NONBLOCK: opening a named pipe must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyFileError(f"key file {path}: {error.strerror}{hint}") from None
    try:
        _check_access(path, os.fstat(fd))
        yield fd
    except OSError as error:
        raise KeyFileError(f"key file {path}: {error.strerror}") from None
    finally:
        os.close(fd)


def _check_access(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise KeyFileError(f"key file {path}: expected a regular file")
    if found.st_uid not in (0, os.geteuid()):
        raise KeyFileError(
            f"key file {path} belongs to user {found.st_uid}, expected {os.geteuid()} or root: "
            "its owner could read and replace the key (chown it)"
        )
    # Root may give a group read access, so that a daemon of another user can read the file. This is
    # how Kubernetes mounts a secret for a pod with fsGroup.
    allowed = 0o740 if found.st_uid == 0 else 0o700
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o777 & ~allowed:
        raise KeyFileError(
            f"key file {path} has mode {mode:04o}: others can read or change it. Run chmod 600 "
            f"{path} (a Kubernetes secret: defaultMode: 0440, and fsGroup for a user other than "
            "root), and make a new key if anybody may have read this one"
        )


def _decode(path: str, text: bytes) -> bytes:
    if not text:
        raise KeyFileError(f"key file {path} is empty; `reducer keygen` makes a key")
    try:
        if not _BASE64.fullmatch(text):
            raise ValueError
        key = base64.urlsafe_b64decode(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4))
    except (ValueError, binascii.Error):
        raise KeyFileError(
            f"key file {path}: expected one line of base64url text (A-Z a-z 0-9 - _), as "
            "`reducer keygen` writes it"
        ) from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise KeyFileError(
            f"key file {path}: the key has {len(key)} bytes, expected {MIN_KEY_BYTES} to "
            f"{MAX_KEY_BYTES}; `reducer keygen` makes one of {NEW_KEY_BYTES}"
        )
    return key
