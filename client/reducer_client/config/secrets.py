"""Secrets of a worker: the key of its job, and the files of its certificate."""

from __future__ import annotations

import os
from collections.abc import Mapping

from reducer import keyfile
from reducer.wire.handshake import MAX_KEY_BYTES, MIN_KEY_BYTES, job_key
from reducer_client.config.given import find_value


def resolve_key(
    job: str,
    key: bytes | None = None,
    key_file: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> bytes:
    """The job's key for mode psk; b"" means none.

    The key comes from the reducers' key ``key``, else from the file ``key_file``, else from the
    file that ``REDUCER_KEY_FILE`` names. The key is not part of Settings, so that no log line,
    copy or message can contain it.

    Raises ValueError for a bad file or key, and TypeError if ``key`` is not bytes. No error text
    contains a part of the key.
    """
    if key is not None and key_file is not None:
        raise ValueError("key and key_file: expected one of them, got both")
    if key is not None:
        if not isinstance(key, bytes):
            raise TypeError(f"key: expected bytes, got {type(key).__name__}")
        if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise ValueError(
                f"key: expected {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, got {len(key)}"
            )
        return job_key(key, job)
    path = find_value("key_file", None if key_file is None else os.fspath(key_file), environ)
    return keyfile.read_for_job(path, job) if path else b""


def resolve_tls(
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, str, str] | None:
    """The files of mode tls (certificate, private key, CA); None if no file is given.

    Raises ValueError if only some files are given, a file cannot be read, or other users can read
    the private key.
    """
    given = {"tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca}
    found = {
        name: find_value(name, None if path is None else os.fspath(path), environ)
        for name, path in given.items()
    }
    missing = [name for name, path in found.items() if not path]
    if len(missing) == len(found):
        return None
    if missing:
        raise ValueError(
            f"mode tls needs tls_cert, tls_key and tls_ca (REDUCER_TLS_CERT, _KEY and _CA); "
            f"missing: {', '.join(missing)}"
        )
    for name, path in found.items():
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ValueError(f"{name} {path}: {error.strerror}") from None
    keyfile.check_private(found["tls_key"])
    return found["tls_cert"], found["tls_key"], found["tls_ca"]
