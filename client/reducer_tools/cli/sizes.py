"""Parsers of options whose values are sizes, counts or times."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import click

from reducer.units import parse_seconds, parse_size

_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_BITS = {"K": 1e-6, "M": 1e-3, "G": 1.0}


Value = TypeVar("Value")
Callback = Callable[[click.Context, click.Parameter, str | None], Value | None]


def _option(parse: Callable[[str], Value]) -> Callback[Value]:
    """A click callback: the value of an option's text, None without a text.

    Ends with exit status 2 if ``parse`` raises ValueError.
    """

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> Value | None:
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}; got {text!r}") from None

    return callback


def parse_count(text: str) -> int:
    """The number of parameters in text such as ``"340M"`` or ``"7B"`` (decimal).

    Raises ValueError for other text.
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([KMBGT]?)", text.strip().upper())
    count = round(float(match[1]) * _DECIMAL[match[2]]) if match else 0
    if count < 1:
        raise ValueError("expected a number such as 340M or 7B")
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
        raise ValueError("expected 1 byte or more, such as 4096, 4K, 64M, 1G or 64MB")
    return size


def parse_gbps(text: str) -> float:
    """Gbit/s of ``"200mbit"``, ``"1.5 Gbit/s"`` or ``"100Mbps"``; no number is a rate by itself.

    Raises ValueError for other text and for 0.
    """
    # No MBps, which is bytes.
    number, unit = r"(\d{1,9}(?:\.\d{1,9})?)", r"([KkMmGg])(?:[Bb]it(?:/s)?|BIT|bps|b/s)"
    match = re.fullmatch(rf"{number}\s*{unit}", text.strip())
    rate = float(match[1]) * _BITS[match[2].upper()] if match else 0.0
    if rate <= 0:
        raise ValueError("expected a rate such as 200mbit, 1gbit or 2.5Gbit/s")
    return rate


def parse_share(text: str) -> float:
    """The part of 1 in ``"95%"`` or ``"0.95"``; ValueError for other text."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(%?)", text.strip())
    if match is None:
        raise ValueError("expected a part such as 95% or 0.95")
    return float(match[1]) / (100 if match[2] else 1)


size_option = _option(parse_bytes)
seconds_option = _option(parse_seconds)
count_option = _option(parse_count)
rate_option = _option(parse_gbps)
share_option = _option(parse_share)
