"""Table and picture of results that `bench.slow_links.text` has written.

python -m bench.slow_links.report bench/results/slow-links-text.jsonl --plot slow-links.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.slow_links.results import format_table, join


def show(lines: Sequence[dict[str, Any]], plot: Path | None) -> None:
    """Print the table, and write the picture if a path is given."""
    curves = join(lines)
    if not curves:
        print("no table: it needs both parts of a method, paces and training")
        return
    print(format_table(curves))
    if plot:
        from bench.slow_links.plot import draw

        draw(curves, plot)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.slow_links.report")
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path, metavar="PATH")
    options = parser.parse_args()
    show([*_read(options.results)], options.plot)


def _read(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from map(json.loads, path.read_text().splitlines())


if __name__ == "__main__":
    main()
