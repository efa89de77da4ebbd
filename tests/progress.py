"""Runs a command that installs something, and shows a short line for each part, with its time.

    python3 tests/progress.py "packages of the demo" pip install ...

Shown are the large downloads of pip and the number of files that ninja has compiled. If the command
fails, its whole output follows. Needs nothing but Python, since nothing else is installed yet.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

_COLUMN = 52  # where times begin, as in `reducer demo`
_PACE = 5.0  # seconds between two lines about compiled files
# Smaller downloads take no time that anyone would notice.
_DOWNLOAD = re.compile(r"Downloading ([A-Za-z0-9_.]+)-([0-9][^-]*)-\S+ \(([0-9.]+ [MG]B)\)")
_COMPILED = re.compile(r"\[(\d+)/(\d+)\] ")


class Progress:
    """The lines of one command, from what the command prints."""

    def __init__(self, what: str, say: Callable[[str], None], now: Callable[[], float]) -> None:
        self._what = what
        self._say = say
        self._now = now
        self._began = now()
        self._shown = self._began
        self._downloading = 0.0  # when the present download began; 0 for none
        self._downloads = 0.0  # seconds

    def read(self, line: str) -> None:
        """Take a line that the command has printed."""
        self._end_download()
        if found := _DOWNLOAD.search(line):
            name, version, size = found.groups()
            self._say(f"  downloading {name} {version}, {size}")
            self._downloading = self._now()
        elif (found := _COMPILED.search(line)) and self._now() - self._shown >= _PACE:
            self._shown = self._now()
            self._say(self._with_time(f"  {self._what}: {found[1]} of {found[2]} files"))

    def end(self) -> None:
        """Show the time of the whole command."""
        self._end_download()
        downloads = f", downloads {self._downloads:.1f} s" if self._downloads else ""
        self._say(self._with_time(f"  {self._what}{downloads}"))

    def _end_download(self) -> None:
        if self._downloading:
            self._downloads += self._now() - self._downloading
        self._downloading = 0.0

    def _with_time(self, text: str) -> str:
        return f"{text:<{_COLUMN}}{self._now() - self._began:6.1f} s"


def main(arguments: Sequence[str]) -> int:
    what, *command = arguments
    progress = Progress(what, lambda line: print(line, flush=True), time.monotonic)
    output = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output.append(line)
                progress.read(line)
        except KeyboardInterrupt:  # the command has it, too, and cleans up
            process.wait()
            return 130
    if process.returncode:
        print("".join(output), end="", flush=True)
    else:
        progress.end()
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
