"""The limits of the registry, and their checks (PROTOCOL.md, section 10).

The checks raise QuotaError with the name of what is too long or too large, and the limit.
"""

from __future__ import annotations

from typing import Final

from reducer.wire.codes import (
    MAX_DOCUMENT_BYTES,
    MAX_HOLDER_BYTES,
    MAX_JOB_BYTES,
    MAX_LEASE_BYTES,
    MAX_RECORD_NAME_BYTES,
)
from reducer.wire.errors import QuotaError

MAX_HOLDERS: Final = 4_096
MAX_LEASES_BYTES: Final = 1 << 20  # of one record, with LEASE_OVERHEAD for each
MAX_RECORDS_OF_JOB: Final = 64
MAX_RECORDS: Final = 1_024
MAX_BYTES_OF_JOB: Final = 4 << 20
MAX_BYTES: Final = 16 << 20  # each change of a document writes all documents to the file
LEAST_LEASE_SECONDS: Final = 0.1
MOST_LEASE_SECONDS: Final = 3_600.0
MOST_WAIT_SECONDS: Final = 25.0
# Changes of a document that a record remembers, to recognize a call whose answer was lost.
KEPT_TOKENS: Final = 16
# What a record and a lease count for, besides their texts and values.
RECORD_OVERHEAD: Final = 1_024
LEASE_OVERHEAD: Final = 128
# A record without leases that nobody has asked for in this time makes room for a new one.
IDLE_SECONDS: Final = 3_600.0


def check_job(job: str) -> None:
    _check_text("the name of a job", job, MAX_JOB_BYTES)


def check_name(name: str) -> None:
    _check_text("the name of a record", name, MAX_RECORD_NAME_BYTES)


def check_holder(holder: str) -> None:
    _check_text("the holder of a lease", holder, MAX_HOLDER_BYTES)


def check_document(value: bytes) -> None:
    _check_bytes("a document", value, MAX_DOCUMENT_BYTES)


def check_lease(value: bytes, seconds: float) -> None:
    _check_bytes("the value of a lease", value, MAX_LEASE_BYTES)
    if not LEAST_LEASE_SECONDS <= seconds <= MOST_LEASE_SECONDS:
        raise QuotaError(
            f"a lease must be for {LEAST_LEASE_SECONDS:g} to {MOST_LEASE_SECONDS:,g} seconds, got "
            f"{seconds:g}"
        )


def _check_text(what: str, text: str, limit: int) -> None:
    size = len(text.encode())
    if not 1 <= size <= limit:
        raise QuotaError(f"{what} must have 1 to {limit} bytes of UTF-8, got {size}")


def _check_bytes(what: str, value: bytes, limit: int) -> None:
    if len(value) > limit:
        raise QuotaError(f"{what} must have at most {limit:,} bytes, got {len(value):,}")
