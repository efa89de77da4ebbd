"""Formats times, sizes, prices and columns as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80


def format_seconds(seconds: float) -> str:
    """A time with at least three digits, in the largest unit of which it is at least one.

    >>> format_seconds(0.0366), format_seconds(2.5), format_seconds(0.00002)
    ('36.6 ms', '2.50 s', '20.0 us')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        value = seconds * scale
        if value >= 1 or unit == "us":
            break
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def format_bytes(size: int) -> str:
    """A size in a binary unit if it is a short multiple, else in a decimal unit with three digits.

    >>> format_bytes(400 << 20), format_bytes(1_360_000_000), format_bytes(999)
    ('400 MiB', '1.36 GB', '999 B')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0 and size < unit << 10:
            return f"{size // unit} {name}"
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def format_price(price: float) -> str:
    """A price with two decimals; between 0 and 1, with three significant digits.

    >>> format_price(1234.5), format_price(0.0004321), format_price(0.0)
    ('1,234.50', '0.000432', '0.00')
    """
    return f"{price:,.2f}" if price >= 1 or price == 0 else f"{price:.3g}"


def wrap(sentences: Sequence[str]) -> list[str]:
    """Wrap the sentences, each from a new line, with its further lines indented."""
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_long_words=False)
    ]
