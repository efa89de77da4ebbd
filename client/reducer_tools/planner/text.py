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


def format_rate(gbps: float) -> str:
    """A rate in Gbit/s or, below 1 Gbit/s, in Mbit/s.

    >>> format_rate(0.2), format_rate(5.0)
    ('200 Mbit/s', '5 Gbit/s')
    """
    return f"{gbps:g} Gbit/s" if gbps >= 1 else f"{gbps * 1000:g} Mbit/s"


def format_share(share: float) -> str:
    """A part of 1 in percent, with three digits or fewer. Only 1 is "100 %".

    >>> format_share(0.95), format_share(0.00651), format_share(0.99996), format_share(0.00001)
    ('95 %', '0.65 %', '99.9 %', '< 0.01 %')
    """
    percent = share * 100
    if percent < 0.01:
        return "< 0.01 %"
    if 99.9 < percent < 100:
        return "99.9 %"
    return f"{percent:.3g} %" if percent >= 1 else f"{percent:.2f} %"


def wrap(sentences: Sequence[str]) -> list[str]:
    """Wrap the sentences, each from a new line, with its further lines indented."""
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_long_words=False)
    ]
