"""The pages of the Python API, read from the sources without an import.

So a page has the same text whether or not a framework is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

from docs.reference.api_pages import PAGES
from docs.reference.docstrings import as_markdown, has_fields
from docs.reference.signatures import signature

_ROOT = Path(__file__).resolve().parents[2]
_DOCSTRINGS = {"returns_multiple_items": False, "returns_named_value": False, "warnings": False}

Described = griffe.Function | griffe.Class


def page(name: str) -> str:
    """The text of a page."""
    title, modules = PAGES[name]
    above: set[str] = set()
    sections = [_section(module, names, above) for module, names in modules.items()]
    return "\n\n".join([f"# {title}", *sections]) + "\n"


def public_names(module: str, listed: tuple[str, ...]) -> list[str]:
    """The names that a page describes. The client's errors have a page of their own."""
    names = listed or tuple(str(name) for name in _modules()[module].exports or ())
    is_client = module == "reducer_client"
    return sorted(name for name in names if not (is_client and name.endswith("Error")))


class _Finder(griffe.ModuleFinder):
    """Finds all of the client, and the optimizers in the daemon's package."""

    def submodules(self, module: griffe.Module) -> list[tuple[tuple[str, ...], Path]]:
        found = super().submodules(module)
        return [one for one in found if module.name != "reducer" or one[0][0] == "optimizers"]


@cache
def _modules() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(
        allow_inspection=False,
        docstring_parser=griffe.Parser.google,
        docstring_options=_DOCSTRINGS,  # type: ignore[arg-type]  # griffe has a type for each style
    )
    loader.finder = _Finder([_ROOT, _ROOT / "client"])
    for package in ("reducer_client", "reducer"):
        loader.load(package)
    loader.resolve_aliases(external=False)
    return loader.modules_collection


def _find(path: str) -> griffe.Object | None:
    """What the name stands for; None for a name that is assigned together with others."""
    try:
        found = _modules()[path]
        return found.final_target if isinstance(found, griffe.Alias) else found
    except (griffe.AliasResolutionError, KeyError):
        return None


def _section(module: str, listed: tuple[str, ...], above: set[str]) -> str:
    entries, known, others = [], [], []
    for name in public_names(module, listed):
        found = _find(f"{module}.{name}")
        if not isinstance(found, Described):
            others.append(f"`{name}`")
        elif found.path in above:
            known.append(f"`{name}`")
        else:
            above.add(found.path)
            entries.append(_entry(found, name))
    lists = [_names("Described above", known), _names("Other names", others)]
    of_module = _find(module)
    text = as_markdown(of_module.docstring) if of_module else ""
    return "\n\n".join(part for part in [f"## {module}", text, *lists, *entries] if part)


def _names(title: str, names: list[str]) -> str:
    return f"{title}: {', '.join(names)}." if names else ""


def _entry(found: Described, name: str) -> str:
    parts = [f"### {name}"]
    if isinstance(found, griffe.Function) or has_fields(found.docstring):
        parts.append(_code(signature(found, name)))
    parts.append(as_markdown(found.docstring))
    if isinstance(found, griffe.Class):
        parts += _members(found)
    return "\n\n".join(part for part in parts if part)


def _members(found: griffe.Class) -> Iterator[str]:
    """Properties as a list, then the methods; those of base classes, too."""
    members = [member for name, member in found.all_members.items() if not name.startswith("_")]
    targets = [one.final_target if isinstance(one, griffe.Alias) else one for one in members]
    properties = [one for one in targets if one.is_attribute and one.docstring]
    if properties:
        yield "\n".join(["Properties:", "", *map(_property, properties)])
    for method in targets:
        if isinstance(method, griffe.Function) and method.docstring:
            yield f"#### {method.name}\n\n{_code(signature(method, method.name))}"
            yield as_markdown(method.docstring)


def _property(found: griffe.Object) -> str:
    return f"- `{found.name}`: {' '.join(as_markdown(found.docstring).split())}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
