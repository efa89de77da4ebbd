"""Every command that docs/ shows in a console runs, page by page, from top to bottom."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reducer_tools.netlab import Lab, LabError, Nic
from tests.support.console import ROOT, Shell, consoles, moved, write_programs
from tests.support.ray_folder import ray_folder, ray_variables

SEVERAL_MACHINES = ROOT / "docs" / "two-machines.md"
PAGES = [
    page
    for page in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "SECURITY.md")
    if consoles(page) and page != SEVERAL_MACHINES
]


# Each takes 5 to 20 CPU seconds, and other tests run the same commands.
AT_NIGHT = (
    "horovod",
    "hosted",
    "migration",
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
    write_programs(page, tmp_path, lambda text: moved(text, ports))
    with ExitStack() as stack:
        for_ray = ray_variables(stack.enter_context(ray_folder())) if page.stem == "ray" else {}
        # The port is for daemons without one on the page.
        shell = Shell(tmp_path, stack, REDUCER_METRICS_PORT="0", **for_ray)
        for line in consoles(page):
            assert not line.machine
            shell.run(moved(line.command, ports), line.printed)
        shell.finish()


def test_no_console_names_a_remote_reducer() -> None:
    shown = [
        word for page in PAGES for line in consoles(page) for word in shlex.split(line.command)
    ]
    assert not [word for word in shown if word.startswith("reducer-")]


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        with Lab({"one": Nic(), "two": Nic()}) as built:
            yield built
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.long
def test_the_tutorial_of_two_machines(lab: Lab, tmp_path: Path) -> None:
    """Each machine is a network namespace with a folder of its own, and has the page's ports."""

    def here(text: str) -> str:
        return text.replace("10.0.0.1", lab.address("one")).replace("10.0.0.2", lab.address("two"))

    with ExitStack() as stack:
        shells = {}
        for name in lab.hosts:
            folder = tmp_path / name
            folder.mkdir()
            write_programs(SEVERAL_MACHINES, folder, here)
            shells[name] = Shell(folder, stack, lab.command(name, []))
        for line in consoles(SEVERAL_MACHINES):
            shells[line.machine].run(here(line.command), line.printed)
            if line.command.startswith("reducer keygen"):
                shutil.copy2(tmp_path / "one/reducer.key", tmp_path / "two")  # scp, on the page
        for shell in shells.values():
            shell.finish()
