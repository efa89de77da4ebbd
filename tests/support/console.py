"""Runs the consoles of a page of docs/ as a reader would.

A page shows commands that need one machine and nothing else as consoles, and all others as shell
code. A line that ends with & runs in the background; a daemon runs until the page is done.
``you@one$`` is a prompt on the machine ``one``, ``$`` on this machine.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.support.entry_points import declare
from tests.support.frameworks import skip_without
from tests.support.ports import free_port
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_PORT = re.compile(r"(?<=[ :])22\d\d\b")
_PROMPT = re.compile(r"(?:you@(\w+))?\$ (.*)")
Change = Callable[[str], str]


class Line(NamedTuple):
    """A command, its machine ("": this one), and the output that the page promises, if any."""

    command: str
    machine: str = ""
    printed: str = ""


def consoles(page: Path) -> list[Line]:
    """The commands of a page, in order. "It prints `X`" follows the console of its command."""
    lines: list[Line] = []
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        if fence[1] != "console":
            continue
        found = map(_PROMPT.fullmatch, fence[3].replace("\\\n", " ").splitlines())
        lines += [Line(prompt[2], prompt[1] or "") for prompt in found if prompt]
        if said := re.match(r"\s*(?:Rank 0|It) prints `([^`]+)`", text[fence.end() :]):
            lines[-1] = lines[-1]._replace(printed=said[1])
    return lines


def write_programs(page: Path, folder: Path, change: Change) -> None:
    """The files that a page shows, under the names that it gives them."""
    shown = {title: (kind, text) for kind, title, text in _FENCE.findall(page.read_text()) if title}
    skip_without(*(text for kind, text in shown.values() if kind == "python"))
    for title, (_, text) in shown.items():
        (folder / title).write_text(change(text))


def moved(text: str, ports: dict[str, str]) -> str:
    """The text with a free port for each port that the page names."""
    return _PORT.sub(lambda port: ports.setdefault(port[0], str(free_port())), text)


class Shell:
    """Runs the lines of one machine, in one folder; ``inside`` is the command that enters it."""

    def __init__(
        self, folder: Path, stack: ExitStack, inside: Sequence[str] = (), **variables: str
    ) -> None:
        self._folder = folder
        self._stack = stack
        self._inside = inside
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDUCER")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        declared = folder / ".declared"
        declare(declared)
        paths = f"{ROOT}:{ROOT / 'client'}:{declared}"
        self._env = {**kept, "PATH": path, "PYTHONPATH": paths, **variables}
        self._exports: list[str] = []
        self._programs: list[tuple[str, subprocess.Popen[bytes]]] = []

    def run(self, line: str, printed: str = "") -> None:
        if line.startswith("export "):
            self._exports.append(line)
            return
        command = line.removesuffix("&").strip()
        process = self._start(command)
        if not line.endswith("&"):
            self._finish(command, process)
            assert printed in self._log(process).read_text(), f"{command} does not print {printed}"
        elif "reducer serve" in command:
            wait_until(lambda: b'"ready"' in self._log(process).read_bytes(), 30)
        else:
            self._programs.append((command, process))

    def finish(self) -> None:
        """Wait for background programs other than daemons, which end by themselves."""
        for command, process in self._programs:
            self._finish(command, process)

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        log = self._folder / f".log{len(list(self._folder.glob('.log*')))}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._inside, "bash", "-c", "; ".join([*self._exports, command])],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.args = str(log)
        self._stack.callback(end, process)
        return process

    @staticmethod
    def _log(process: subprocess.Popen[bytes]) -> Path:
        return Path(str(process.args))

    def _finish(self, command: str, process: subprocess.Popen[bytes]) -> None:
        status = process.wait(120)
        assert status == 0, f"{command}: exit status {status}\n{self._log(process).read_text()}"


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait(30)
