"""Every command, option, metric, public error and public name is on a page of the reference."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from docs import assemble
from docs.reference import api, commands, errors, settings
from docs.reference.api_pages import PAGES
from reducer.server.daemon import metrics
from reducer.wire.codes import ErrorCode
from reducer_client import errors as client_errors

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "client" / "reducer_client"
# Not the beginning of a name, such as "REDUCER_" + name.
_VARIABLE = re.compile(r"\bREDUCER_[A-Z][A-Z_]*[A-Z]\b")
INTERNAL = {"reducer_client.config", "reducer_client.engine"}
MODULES = [
    (page, module, names)
    for page, (_, modules) in PAGES.items()
    for module, names in modules.items()
]


def headings(text: str, level: int) -> set[str]:
    return set(re.findall(rf"^{'#' * level} (.*)$", text, re.M))


def test_every_command_and_option() -> None:
    page = commands.page()
    for path, command in commands.commands():
        assert path in headings(page, 2)
        section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        shown = set(re.findall(r"^\| `([^`]*)`", section, re.M))
        names = {name for option in shown for name in re.split(r"[ ,/]+", option)}
        assert {name for p in command.params for name in p.opts if name[0] == "-"} <= names


def test_every_setting() -> None:
    """Every variable that a source names is on the page or is a parameter of the plugin alone."""
    sources = [*ROOT.glob("client/**/*.py"), *ROOT.glob("reducer/**/*.py")]
    named = {name for path in sources for name in _VARIABLE.findall(path.read_text())}
    page = settings.page() + (ROOT / "nccl_plugin" / "README.md").read_text()
    assert len(named) > 40
    assert not {name for name in named if f"`{name}`" not in page}


def test_every_metric() -> None:
    page = (ROOT / "reducer" / "METRICS.md").read_text()
    assert not [one.exposed for one in metrics.catalogue() if f"| `{one.exposed}` |" not in page]


def test_every_error_and_what_to_do() -> None:
    page = errors.page()
    assert headings(page, 2) == {*client_errors.__all__, "Codes on the wire"}
    for name in set(client_errors.__all__) - {"ReducerError"}:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert "What to do" in section, name
    assert all(f"| {code.value} | `{code.name}` |" in page for code in ErrorCode)


@pytest.mark.parametrize(("page", "module", "names"), MODULES)
def test_every_public_name(page: str, module: str, names: tuple[str, ...]) -> None:
    section = api.page(page).partition(f"\n## {module}\n")[2].partition("\n## ")[0]
    lists = " ".join(re.findall(r"^(?:Described above|Other names): (.*)$", section, re.M))
    shown = headings(section, 3) | set(re.findall(r"`(\w+)`", lists))
    public = api.public_names(module, names)
    assert public
    assert set(public) <= shown


def test_every_public_module() -> None:
    """Modules just below the client that declare public names."""
    found = {
        f"reducer_client.{path.parent.name if path.stem == '__init__' else path.stem}"
        for path in (*CLIENT.glob("*.py"), *CLIENT.glob("*/__init__.py"))
        if re.search(r"^__all__", path.read_text(), re.M)
    }
    shown = {module for _, module, _ in MODULES} | {"reducer_client.errors"} | INTERNAL
    assert found - {"reducer_client.reducer_client"} <= shown


def test_every_page_is_in_the_navigation() -> None:
    settings = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())
    groups = [pages for group in settings["project"]["nav"] for pages in group.values()]
    listed = [page for pages in groups for entry in pages for page in entry.values()]
    assert sorted(listed) == sorted([*assemble.pages().values(), *assemble.REFERENCE])
