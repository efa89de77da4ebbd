"""The page of all commands of the program `reducer`, from their declarations in click."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from reducer_tools import cli

_INTRO = """\
# Commands

This page lists every command of the program `reducer`, with its options. `reducer COMMAND --help`
prints the same text.

| command | what it does |
|---|---|
"""
# What is set as code in a text: an option, a variable, a quoted command.
_CODE = re.compile(r"`[^`]+`|(?<![\w-])--?[a-z][\w-]*|\b[A-Z]+_[A-Z_]+(?:=\w+)?")


def page() -> str:
    """The text of the page."""
    found = list(commands())
    rows = [
        f"| [`{path}`](#{_anchor(path)}) | {one.get_short_help_str(200)} |" for path, one in found
    ]
    return _INTRO + "\n".join([*rows, *(_section(path, command) for path, command in found)])


def commands(
    path: str = "reducer", command: click.Command = cli.main
) -> Iterator[tuple[str, click.Command]]:
    """(words, command) of every command that runs something, in the order of the help."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        assert found is not None
        yield from commands(f"{path} {name}", found)


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [f"\n## {path}", f"```text\n{usage}\n```", *_paragraphs(command.help or "")]
    rows = [row for row in map(_row, _options(command, context)) if row]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    records = [parameter.get_help_record(context) for parameter in command.params]
    return [record for record in records if record is not None]


def _row(record: tuple[str, str]) -> str:
    names, meaning = record
    return f"| `{names}` | {as_markdown(meaning)} |"


def _paragraphs(text: str) -> Iterator[str]:
    """The help as Markdown. After ``\\b`` click keeps the lines of a paragraph as they are."""
    for paragraph in inspect.cleandoc(text.partition("\f")[0]).split("\n\n"):
        kept, mark, lines = paragraph.partition("\b\n")
        yield f"```text\n{lines}\n```" if mark and not kept else as_markdown(paragraph)


def as_markdown(text: str) -> str:
    """Plain text in which options, variables and commands are code, and nothing else is markup."""
    plain = text.replace("*", r"\*").replace("<", "&lt;").replace("|", r"\|")
    return _CODE.sub(lambda found: f"`{found[0].strip('`')}`", plain)
