"""Docstrings in Google's style as Markdown."""

from __future__ import annotations

import griffe

_TITLES = {
    griffe.DocstringSectionKind.parameters: "Arguments",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.raises: "Raises",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
}


def as_markdown(docstring: griffe.Docstring | None) -> str:
    """The docstring, its sections as lists; "" if there is none."""
    return "\n\n".join(map(_section, docstring.parsed)) if docstring else ""


def has_fields(docstring: griffe.Docstring | None) -> bool:
    """Whether a class tells what its constructor takes."""
    fields = (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)
    return docstring is not None and any(one.kind in fields for one in docstring.parsed)


def _section(section: griffe.DocstringSection) -> str:
    title = _TITLES.get(section.kind)
    if title is None:
        return str(section.value).replace("::\n\n    ", ":\n\n    ")  # of reStructuredText
    return "\n".join([f"{title}:", "", *map(_item, section.value)])


def _item(item: griffe.DocstringElement) -> str:
    name = getattr(item, "name", "") or (
        str(item.annotation) if isinstance(item, griffe.DocstringRaise) else ""
    )
    text = " ".join(str(item.description).split())
    return f"- `{name}`: {text}" if name else f"- {text}"
