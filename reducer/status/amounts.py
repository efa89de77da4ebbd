"""Numbers as people say them."""

from __future__ import annotations


def amount(size: float) -> str:
    """A number of bytes in decimal units, with three digits.

    >>> amount(0), amount(12_345), amount(1.5e9)
    ('0 B', '12.3 kB', '1.50 GB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            digits = 0 if unit == "B" or size >= 99.95 else 1 if size >= 9.995 else 2
            return f"{size:.{digits}f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "round"), counted(2_000, "round")
    ('1 round', '2,000 rounds')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.04), duration(41.2), duration(125), duration(7300)
    ('0.0 s', '41.2 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
