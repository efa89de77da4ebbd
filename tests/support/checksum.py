"""CRC-32C in plain Python: the reference for the checksum.

Polynomial 0x1EDC6F41 (Castagnoli), reflected, initial value and final XOR 0xFFFFFFFF (RFC 3720,
appendix B.4).
"""

from __future__ import annotations

from typing import Final

_REFLECTED_POLYNOMIAL: Final = 0x82F63B78


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_REFLECTED_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE: Final = _table()


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C of `data`; 0 for no bytes."""
    value = 0xFFFFFFFF
    for byte in bytes(data):
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
