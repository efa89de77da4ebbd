"""Every command that docs/ shows in a console runs, page by page, from top to bottom.

A page shows commands that need one machine and nothing else as consoles, and all others as shell
code. A line that ends with & runs in the background; a daemon runs until the page is done.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.entry_points import declare
from tests.support.frameworks import skip_without
from tests.support.ports import free_port
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_PORT = re.compile(r"(?<=[ :])22\d\d\b")


class Line(NamedTuple):
    """A command, and the output that the page promises, if any."""

    command: str
    printed: str = ""


def consoles(page: Path) -> list[Line]:
    """The commands of a page, in order. "Rank 0 prints `X`" follows the console of its command."""
    lines: list[Line] = []
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        if fence[1] != "console":
            continue
        joined = fence[3].replace("\\\n", " ").splitlines()
        lines += [Line(line[2:]) for line in joined if line.startswith("$ ")]
        if said := re.match(r"\s*Rank 0 prints `([^`]+)`", text[fence.end() :]):
            lines[-1] = Line(lines[-1].command, said[1])
    return lines


def write_programs(page: Path, folder: Path, ports: dict[str, str]) -> None:
    """The files that a page shows, under the names that it gives them."""
    shown = {title: (kind, text) for kind, title, text in _FENCE.findall(page.read_text()) if title}
    skip_without(*(text for kind, text in shown.values() if kind == "python"))
    for title, (_, text) in shown.items():
        (folder / title).write_text(moved(text, ports))


def moved(text: str, ports: dict[str, str]) -> str:
    """The text with a free port for each port that the page names."""
    return _PORT.sub(lambda port: ports.setdefault(port[0], str(free_port())), text)


class Shell:
    """Runs the lines of a page as a reader would, in one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDUCER")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        declared = folder / ".declared"
        declare(declared)
        paths = f"{ROOT}:{ROOT / 'client'}:{declared}"
        self._env = {**kept, "PATH": path, "PYTHONPATH": paths}
        self._env["REDUCER_METRICS_PORT"] = "0"  # for daemons without a port on the page
        self._programs: list[tuple[str, subprocess.Popen[bytes]]] = []

    def run(self, line: str, printed: str) -> None:
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
                ["bash", "-c", command],
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


PAGES = [
    page for page in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "SECURITY.md") if consoles(page)
]


# Each takes 5 to 20 CPU seconds, and other tests run the same commands.
AT_NIGHT = (
    "horovod",
    "hosted",
    "operations",
    "parameter-server",
    "pytorch",
    "sizing",
    "slow-links",
)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] * (page.stem in AT_NIGHT)) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    ports: dict[str, str] = {}
    write_programs(page, tmp_path, ports)
    with ExitStack() as stack:
        shell = Shell(tmp_path, stack)
        for line in consoles(page):
            shell.run(moved(line.command, ports), line.printed)
        shell.finish()


def test_no_console_names_a_remote_reducer() -> None:
    shown = [
        word for page in PAGES for line in consoles(page) for word in shlex.split(line.command)
    ]
    assert not [word for word in shown if word.startswith("reducer-")]
