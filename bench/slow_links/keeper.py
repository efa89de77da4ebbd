"""The lines of a result."""

from __future__ import annotations

import json
from typing import Any, TextIO


class Keeper:
    """Keeps the lines of a result, and writes each to the file, if any, as soon as it is there."""

    def __init__(self, file: TextIO | None) -> None:
        self.lines: list[dict[str, Any]] = []
        self._file = file

    def __call__(self, what: str, **values: Any) -> None:
        self.lines.append({"what": what, **values})
        if self._file is not None:
            self._file.write(json.dumps(self.lines[-1]) + "\n")
            self._file.flush()
