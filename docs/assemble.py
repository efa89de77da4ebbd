"""Gathers the pages of the documentation from docs/ and from the other folders.

python docs/assemble.py build/docs     # then `zensical build -f build/docs/zensical.toml`

A document stays where it is read beside the code; its links are rewritten for the site, and its
pictures are copied.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Documents outside docs/, and the page that each becomes.
ELSEWHERE = {
    "client/README.md": "client.md",
    "examples/README.md": "examples.md",
    "nccl_plugin/README.md": "nccl.md",
    "deploy/README.md": "deployment.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "benchmarks.md",
    "reducer/wire/PROTOCOL.md": "protocol.md",
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
    shutil.copy(ROOT / "docs" / "zensical.toml", target)
    shutil.copy(ROOT / "docs" / "tables.css", target / "pages")
    for document, page in pages().items():
        text = _LINK.sub(lambda link, at=document: _moved(link, at, target), document.read_text())
        head = "" if "\n## " in text else _WITHOUT_CONTENTS
        (target / "pages" / page).write_text(head + text)


def _moved(link: re.Match[str], document: Path, target: Path) -> str:
    """A link of a document, written for its page. Files that are no pages become their paths."""
    picture, text, address, anchor = link.groups()
    if ":" in address:
        return link[0]
    file = Path(os.path.normpath(document.parent / address))
    if not file.exists():
        raise FileNotFoundError(f"{document.relative_to(ROOT)} links to {address}: not there")
    page = pages().get(file)
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
