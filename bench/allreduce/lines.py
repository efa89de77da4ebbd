"""Filters for the lines of a run on their way to the report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

Line = dict[str, Any]
_CLEAR = "\r\x1b[K"


def keep(lines: Iterable[Line], path: Path | None) -> Iterator[Line]:
    """Append the lines to a file as they come, and pass them on."""
    for line in lines:
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        yield line


def show(lines: Iterable[Line], stream: TextIO) -> Iterator[Line]:
    """Show the last measurement on a terminal, and pass the lines on."""
    for line in lines:
        if stream.isatty() and line["what"] == "all-reduce":
            names = "{bytes} bytes of {dtype} as {wire_dtype}, {contender}, turn {turn}"
            seconds = line["seconds"][-1]
            stream.write(f"{_CLEAR}{names.format_map(line)}: {seconds * 1000:.3f} ms")
            stream.flush()
        yield line
    if stream.isatty():
        stream.write(_CLEAR)
