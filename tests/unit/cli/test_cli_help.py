"""The help of every command, which readers search for names of options and copy them from."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from reducer.cli import LazyGroup
from reducer_tools.cli import main


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    yield path
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(_commands(main)), ids=" ".join)
def test_no_line_ends_inside_the_name_of_an_option(path: tuple[str, ...]) -> None:
    assert isinstance(main, LazyGroup)
    found = CliRunner().invoke(main, [*path, "--help"], terminal_width=80)
    assert found.exit_code == 0 and "\u2011" not in found.output
    assert not re.findall(r"\S*\w-$", found.output, re.MULTILINE)


def test_values_are_named_after_what_they_are() -> None:
    help_ = CliRunner().invoke(main, ["serve", "--help"], terminal_width=80).output
    for option in (
        "--port PORT", "--host HOST", "--key-file FILE", "--tls-ca FILE", "--timeline FOLDER",
        "--memory SIZE", "--max-keys NUMBER", "--kernels auto|native|numpy",
    ):  # fmt: skip
        assert f"{option} " in help_, option
