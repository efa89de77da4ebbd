"""Gathers the pages of the documentation from docs/ and from the other folders.

    python -m docs.assemble build/docs     # then `zensical build -f build/docs/zensical.toml`

A document stays where it is read beside the code; its links are rewritten for the site, and its
pictures are copied. `docs.reference` writes the pages of the reference.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs.reference import api, commands, errors, settings
from docs.reference.api_pages import PAGES
from reducer import __version__

ROOT = Path(__file__).resolve().parents[1]
# Documents outside docs/, and the page that each becomes.
ELSEWHERE = {
    "client/README.md": "client.md",
    "examples/README.md": "examples.md",
    "nccl_plugin/README.md": "nccl.md",
    "deploy/README.md": "deployment.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "benchmarks.md",
    "bench/scale/README.md": "scale.md",
    "reducer/wire/PROTOCOL.md": "protocol.md",
    "reducer/METRICS.md": "metrics.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Pages that are written at each build, and by which function.
REFERENCE: dict[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "errors.md": errors.page,
    "settings.md": settings.page,
    **{name: partial(api.page, name) for name in PAGES},
}
# Sources to which documents link, and the page of the reference that describes each.
DESCRIBED = {
    "client/reducer_tools/cli/__init__.py": "commands.md",
    "client/reducer_client/config/given.py": "settings.md",
    "client/reducer_client/errors.py": "errors.md",
    "client/reducer_client/__init__.py": "api.md",
    "client/reducer_client/torch/__init__.py": "api-torch.md",
    "client/reducer_client/tables/__init__.py": "api-tables.md",
}
# Front matter of a page without sections: hides the table of contents, so that the text is wider.
_WITHOUT_CONTENTS = "---\nhide:\n  - toc\n---\n\n"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def pages() -> dict[Path, str]:
    """Every document and the name of its page."""
    here = {path: path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    return here | {ROOT / name: page for name, page in ELSEWHERE.items()}


def assemble(target: Path) -> None:
    """Write the pages below ``target``; raises FileNotFoundError for a link to nothing."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "pages").mkdir(parents=True)
    settings = (ROOT / "docs" / "zensical.toml").read_text()
    (target / "zensical.toml").write_text(settings.replace("{version}", __version__))
    for name in ("site.css", "iframe-worker.js"):
        shutil.copy(ROOT / "docs" / name, target / "pages")
    for document, page in pages().items():
        _write(target, page, document, document.read_text())
    for page, text in REFERENCE.items():
        _write(target, page, ROOT / "docs" / page, text())


def _write(target: Path, page: str, document: Path, text: str) -> None:
    moved = _LINK.sub(lambda link: _moved(link, document, target), text)
    head = "" if "\n## " in text else _WITHOUT_CONTENTS
    (target / "pages" / page).write_text(head + moved)


def _moved(link: re.Match[str], document: Path, target: Path) -> str:
    """A link of a document, written for its page. Files that are no pages become their paths."""
    picture, text, address, anchor = link.groups()
    if ":" in address:
        return link[0]
    file = Path(os.path.normpath(document.parent / address))
    if not file.exists():
        raise FileNotFoundError(f"{document.relative_to(ROOT)} links to {address}: not there")
    page = pages().get(file) or DESCRIBED.get(str(file.relative_to(ROOT)))
    if page:
        return f"[{text}]({page}{anchor or ''})"
    if not picture:
        path = f"`{file.relative_to(ROOT)}`"
        return path if text in (str(address), file.name) else f"{text} ({path})"
    (target / "pages" / "images").mkdir(exist_ok=True)
    shutil.copy(file, target / "pages" / "images" / file.name)
    return f"![{text}](images/{file.name})"


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
