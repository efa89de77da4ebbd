"""Table and plot of the results of `bench.training`.

python -m bench.training.report results.jsonl ... --plot training.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.training.case import Case, from_json
from bench.training.summary import Line, Row, ring_bound, ring_overhead, summarize
from reducer.units import format_size

_HEAD = (
    *("", "samples/s", "step s", "(of blocks)", "compute s", "exposed s", "efficiency"),
    *("loss", "(first)", "off gloo", "speed-up", "(of blocks)"),
)


def format_table(case: Case, lines: Sequence[Line]) -> str:
    """The case, one line for each contender, and the bound."""
    rows = summarize(case, lines)
    size = lines[0]["gradient_bytes"]
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(_HEAD))]
    text = [_title(case, size, lines[0]["busy"]), ""]
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        text.append("  ".join((row[0].ljust(widths[0]), *rest)))
    bound = ring_bound(case, size, rows[0].compute)
    if bound is not None:
        ceiling = ring_overhead(case.workers)
        text.append(
            f"\nceiling over a ring at {case.workers} workers: {ceiling:.2f}; with this "
            f"computation, none of it hiding communication: {bound:.2f}"
        )
    return "\n".join(text)


def _title(case: Case, size: int, busy: float) -> str:
    where = "loopback" if case.rate is None else f"{case.rate} NICs"
    options = [] if case.chunk is None else [f"chunks of {format_size(case.chunk)}"]
    options += [] if case.credit is None else [f"credit {case.credit}"]
    options += [f"{case.device_ms:g} ms a layer"] if case.device_ms else []
    options += [] if case.device == "cpu" else [f"on {case.device}"]
    return (
        f"{case.size}: {size / 4e6:.1f} million parameters, {size / 1e6:.1f} MB of gradients; "
        f"{', '.join((f'{case.workers} workers', f'{case.reducers} reducers', where))};\n"
        f"{case.batch} x {case.sequence} tokens a worker and step; "
        f"{case.blocks} blocks of {case.steps} steps, {case.warmup} to warm up; "
        f"{', '.join((case.congestion, *options))}; machine {busy:.0%} busy"
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.samples_per_second:.2f}",
        f"{row.step:.3f}",
        f"({row.fastest:.3f}-{row.slowest:.3f})",
        f"{row.compute:.3f}",
        f"{row.exposed:.3f}",
        f"{row.efficiency:.1%}",
        f"{row.loss:.4f}",
        f"({row.first_loss:.4f})",
        f"{row.difference:.0e}",
        f"{row.speedup:.2f}",
        f"({row.lowest_speedup:.2f}-{row.highest_speedup:.2f})",
    )


def load(paths: Sequence[Path]) -> list[tuple[Case, list[Line]]]:
    """The results in files, by case. Raises ValueError for a line that is no result."""
    found: dict[Case, dict[str, Line]] = {}
    for path in paths:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = json.loads(text)
            if line.get("what") == "context":
                continue
            if line.get("what") != "training":
                raise ValueError(f"{path}:{number}: not a line of bench.training")
            found.setdefault(from_json(line["case"]), {})[line["contender"]] = line
    return [(case, list(lines.values())) for case, lines in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Table and picture of training results.")
    parser.add_argument("results", nargs="+", type=Path, help="files that --json has written")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    options = parser.parse_args()
    results = load(options.results)
    print("\n\n".join(format_table(case, lines) for case, lines in results))
    if options.plot:
        from bench.training.plot import draw

        draw(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
