"""Targets, commands, options and names in the documents exist. Python sessions are run."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from docs import assemble
from reducer_tools import cli
from tests.support.frameworks import skip_without

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("*/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
]
PROMPT = re.compile(r"(?:you@\w+)?\$ (.*)")
OURS = ("reducer", "reducer_client")


def fences(*languages: str) -> list[tuple[str, str]]:
    """(where, text) of every fenced block in one of the languages."""
    found = []
    for document in DOCUMENTS:
        for match in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```$", document.read_text(), re.M | re.S):
            if match[1] in languages:
                line = document.read_text()[: match.start()].count("\n") + 1
                found.append((f"{document.relative_to(ROOT)}:{line}", match[2]))
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """(where, words) of every shell command; in console fences, of lines with a prompt."""
    shown = [(where, line) for where, text in fences("sh", "bash") for line in joined(text)]
    for where, text in fences("console"):
        found = map(PROMPT.fullmatch, joined(text))
        shown += [(where, line[1]) for line in found if line]
    for where, line in shown:
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words:
            yield where, words


def joined(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def missing_names(tree: ast.Module) -> Iterator[str]:
    """Names of our packages that an example uses although they do not exist."""
    modules: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(OURS):
            module = importlib.import_module(node.module)
            yield from (
                f"{node.module}.{a.name}"
                for a in node.names
                if not hasattr(module, a.name) and find_spec(f"{node.module}.{a.name}") is None
            )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OURS:
                    importlib.import_module(alias.name)
                    top = alias.name if alias.asname else alias.name.split(".")[0]
                    modules[alias.asname or top] = importlib.import_module(top)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and not hasattr(module, node.attr):
                yield f"{node.value.id}.{node.attr}"


PROGRAMS = [fence for fence in fences("python") if ">>> " not in fence[1]]
SESSIONS = [path for path in DOCUMENTS if ">>> " in path.read_text()]


@pytest.mark.parametrize(("where", "text"), PROGRAMS)
def test_programs_use_names_that_exist(where: str, text: str) -> None:
    skip_without(text)
    assert not list(missing_names(ast.parse(text, where)))


@pytest.mark.parametrize("document", SESSIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_sessions_run_as_shown(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures, _ = doctest.testfile(str(document), module_relative=False)
    assert not failures, capsys.readouterr().out


@pytest.mark.parametrize("document", assemble.pages(), ids=lambda path: path.stem)
def test_every_column_has_a_head(document: Path) -> None:
    heads = re.findall(r"^(\|.*\|)\n\|[-:| ]+\|$", document.read_text(), re.M)
    assert not [head for head in heads if re.search(r"\|\s*\|", head)]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    made = [words[1:] for _, words in commands() if words[0] == "make" and words[1:2] != ["-C"]]
    shown = {word for words in made for word in words}
    assert shown
    assert {target for target in shown if "=" not in target} <= targets


def test_reducer_commands_and_options_exist() -> None:
    for where, words in commands():
        if Path(words[0]).name != "reducer":
            continue
        command: click.Command = cli.main
        rest = words[1:]
        while rest and isinstance(command, click.Group) and not rest[0].startswith("-"):
            found = command.get_command(click.Context(command), rest[0])
            assert found is not None, f"{where}: reducer {rest[0]}"
            command, rest = found, rest[1:]
        known = {option for p in command.params for option in [*p.opts, *p.secondary_opts]}
        shown = {word.split("=")[0] for word in rest if word.startswith("--")} - {"--help"}
        assert shown <= known, f"{where}: {sorted(shown - known)}"


def test_no_text_sends_people_to_an_index() -> None:
    """Regression: three texts said `pip install 'open-reduction-server[top]'`.

    The project is on no index of packages yet, so anybody could publish a package of this name.
    """
    named = re.compile(r"install\b[^\n`]*[\s'\"]open-reduction-server(?![\w./-]*\.(?:whl|tar))")
    made = {".git", ".venv", "build", "dist"}
    tops = [top for top in ROOT.iterdir() if top.name not in made]
    paths = [path for top in tops for path in (top, *top.rglob("*"))]
    texts = {".md", ".py", ".toml", ".yaml", ".sh", ""}
    found = [
        f"{path.relative_to(ROOT)}: {each[0]}"
        for path in paths
        if path.suffix in texts and path.is_file() and path != Path(__file__)
        for each in named.finditer(path.read_text(errors="replace"))
    ]
    assert found == []
