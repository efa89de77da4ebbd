"""CRC-32C of another library than the product's: the reference for the checksum."""

from __future__ import annotations

import google_crc32c


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C of `data` (RFC 3720, appendix B.4); 0 for no bytes."""
    value: int = google_crc32c.value(bytes(data))
    return value
