"""Parses and formats sizes, counts, times and switches.

Every `parse_*` raises a ValueError whose text says what was expected.
"""

from __future__ import annotations

import re

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
# Memory that a daemon needs besides its budget: 35 MB for the main process and for each lane
# process, and the kernel's socket buffers (256 KiB unsent per connection, and the bytes in flight).
_BASE_BYTES = 128 << 20
_LANE_BYTES = 96 << 20


def parse_size(text: str) -> int:
    """Bytes of ``"256MiB"``, ``"8 GB"`` or ``"4096"``; ValueError for anything else."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)", text.strip())
    unit = _UNITS.get((match[2] or "B").upper()) if match else None
    if match is None or unit is None:
        raise ValueError("expected a size such as 4096, 256MiB or 8GB")
    return int(float(match[1]) * unit)


def format_size(size: int) -> str:
    """The shortest exact text, in binary units."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def format_count(count: int, noun: str) -> str:
    """A number with its noun, in the plural if needed.

    >>> format_count(1, "reducer"), format_count(25, "reducer")
    ('1 reducer', '25 reducers')
    """
    return f"{count:,} {noun}" + ("s" if count != 1 else "")


def parse_seconds(text: str) -> float:
    """Seconds of ``"10"``, ``"10s"``, ``"250ms"`` or ``"2m"``; ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if match is None:
        raise ValueError("expected a time such as 10, 10s, 250ms or 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def format_seconds(seconds: float) -> str:
    return f"{seconds:g}s"


def parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"expected one of {', '.join(_TRUE + _FALSE)}")
    return word in _TRUE


def parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def parse_lanes(text: str) -> int:
    """Number of lanes; 0 stands for ``auto``."""
    if text.strip().lower() == "auto":
        return 0
    count = parse_int(text)
    if count < 1:
        raise ValueError("expected 'auto' or a number of 1 or more")
    return count


def format_lanes(count: int) -> str:
    return str(count) if count else "auto"


def auto_lanes(cores: int) -> int:
    """The number of lanes that ``auto`` stands for on this many cores: three quarters, at least 1.

    The kernel receives packets on the other cores. A second lane on two cores gains nothing, since
    one lane and the kernel's work for it keep both cores busy.
    """
    return max(1, cores * 3 // 4)


def needed_memory(budget: int, lanes: int) -> int:
    """Bytes that a reducer with this ``--memory`` and this number of lanes may take.

    They are the budget, the tenth by which a lane may exceed its budget, and the daemon's own
    needs.
    """
    return int(budget * 1.1) + _BASE_BYTES + _LANE_BYTES * lanes


def format_bool(value: bool) -> str:
    return "true" if value else "false"
