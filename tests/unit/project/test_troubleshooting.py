"""Each message that docs/troubleshooting.md quotes is still in the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
PYTHON = ("reducer", "client/reducer_client", "client/reducer_tools")
CPP = ("client/engine", "nccl_plugin")
GAP = "\0"  # stands for what a program puts into a message


def messages() -> list[str]:
    """The first column of the tables whose head says that it has messages."""
    text = PAGE.read_text()
    tables = re.findall(r"^\| message \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    return [row.split("`")[1] for table in tables for row in table.splitlines()]


@cache
def texts() -> str:
    """Every text of the sources, one on a line."""
    python = (path for folder in PYTHON for path in (ROOT / folder).rglob("*.py"))
    cpp = (path for folder in CPP for path in (ROOT / folder).rglob("*.c[cp]*"))
    found = [text for path in python for text in in_python(path)]
    return "\n".join([*found, *(text for path in cpp for text in in_cpp(path))])


def in_python(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def in_cpp(path: Path) -> Iterator[str]:
    """Literals one behind the other are one text; so are literals with anything added between."""
    text = re.sub(r"//.*", "", path.read_text())
    for statement in text.split(";\n"):
        yield GAP.join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.sub(r'"\s*"', "", statement)))


def pattern(message: str) -> str:
    """Matches the message, whose gaps stand for anything within one text."""
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    return r"[^\n]*?".join(parts)


@pytest.mark.parametrize("message", messages())
def test_the_message_is_in_the_sources(message: str) -> None:
    is_there = re.search(pattern(message), texts()) is not None
    assert is_there, message


def test_there_are_enough_messages() -> None:
    assert len(messages()) >= 30
