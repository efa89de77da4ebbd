"""Parsers of options whose values are sizes, counts or times."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import click

from reducer.units import parse_seconds, parse_size

_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


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


size_option = _option(parse_bytes)
seconds_option = _option(parse_seconds)
count_option = _option(parse_count)
