"""The changelog, the packages, the distribution and the program name the same version.

The version of the wire protocol is the same in the packages, in the program and in the engine.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import reducer
import reducer.cli
import reducer_client
import reducer_tools.cli
from reducer.version import PROTOCOL_VERSION
from reducer.wire.codes import PROTOCOL_MAJOR, PROTOCOL_MINOR

ROOT = Path(__file__).parents[3]


def test_newest_entry_is_the_version() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == reducer.__version__
    assert versions == sorted(versions, key=lambda v: [*map(int, v.split("."))], reverse=True)


def test_client_and_distribution_have_the_version() -> None:
    assert reducer_client.__version__ == reducer.__version__
    installed = metadata.version("open-reduction-server")
    assert installed == reducer.__version__, "an older build is installed: run make venv"


@pytest.mark.parametrize("program", [reducer.cli.main, reducer_tools.cli.main])
def test_the_program_tells_both_versions(program: click.Command) -> None:
    told = CliRunner().invoke(program, ["--version"]).output
    assert told == f"reducer {reducer.__version__}, wire protocol {PROTOCOL_VERSION}\n"


def test_both_packages_and_the_engine_have_the_version_of_the_protocol() -> None:
    assert reducer_client.PROTOCOL_VERSION == PROTOCOL_VERSION
    assert f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}" == PROTOCOL_VERSION
    header = (ROOT / "client" / "engine" / "codec" / "wire.h").read_text()
    numbers = re.findall(r"kProtocolM(?:aj|in)or = (\d+);", header)
    assert ".".join(numbers) == PROTOCOL_VERSION
