"""CRC-32C of another library than the product's: the reference for the checksum."""

from __future__ import annotations

import google_crc32c


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """CRC-32C of `data` (RFC 3720, appendix B.4) after bytes with the CRC `value`."""
    crc: int = google_crc32c.extend(value, bytes(data))
    return crc
