"""Parsers of options whose values are sizes, counts or times."""

from __future__ import annotations

import re

import click

from reducer.units import parse_seconds, parse_size

_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def size_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A click callback: a size in bytes. Ends with exit status 2 if the text is not a size."""
    if value is None:
        return None
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; got {value!r}") from None


def seconds_option(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A click callback: a time in seconds. Ends with exit status 2 if the text is not a time."""
    if value is None:
        return None
    try:
        return parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; got {value!r}") from None


def count_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A click callback: the number of parameters in text such as ``"340M"`` or ``"7B"`` (decimal).

    Ends with exit status 2 if the text is not such a number.
    """
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([KMBGT]?)", value.strip().upper())
    count = round(float(match[1]) * _DECIMAL[match[2]]) if match else 0
    if count < 1:
        raise click.BadParameter(f"expected a number such as 340M or 7B; got {value!r}")
    return count


def parse_bytes(text: str) -> int:
    """Parse a size such as ``"4K"``, ``"64M"``, ``"1G"`` (binary, as in nccl-tests), or any size
    that ``parse_size`` accepts.

    Raises ValueError for other text and for sizes below 1 byte.
    """
    short = re.fullmatch(r"(\d+)([KMG])", text.strip().upper())
    try:
        size = int(short[1]) * _BINARY[short[2]] if short else parse_size(text)
    except ValueError:
        size = 0
    if size < 1:
        raise ValueError("expected bytes from 1, such as 4096, 4K, 64M, 1G or 64MB")
    return size
