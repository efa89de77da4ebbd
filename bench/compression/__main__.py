"""`python -m bench.compression`: runs the comparison of bench/compression on loopback."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import bench.compression
from bench.compression.digits import EPOCHS
from bench.compression.methods import METHODS, WHOLE
from bench.compression.run import Runs, run
from bench.machine import facts


def main() -> None:
    options = _parse_arguments()
    runs = run(options.names, options.workers, options.reducers, options.seeds, options.epochs)
    print(format_table(runs, options.names))
    if options.json:
        lines = [
            {"method": name, "seed": seed, "workers": options.workers, **asdict(of[name])}
            for seed, of in enumerate(runs, 1)
            for name in options.names
        ]
        context = {"what": "context", **facts()}
        text = "".join(f"{json.dumps(line)}\n" for line in (context, *lines))
        options.json.write_text(text)


def format_table(runs: Runs, names: Sequence[str]) -> str:
    """A table with one line per method; values are means over the seeds."""
    width = max(len(name) for name in ("method", *names))
    lines = [f"{'method':{width}}{'KB/step':>10}{'saved':>8}{'accuracy':>10}{'ms/step':>9}"]
    whole = runs[0][names[0]]
    for name in names:
        first = runs[0][name]
        accuracy = statistics.fmean(of[name].accuracy for of in runs)
        step = statistics.fmean(of[name].seconds / of[name].steps for of in runs)
        lines.append(
            f"{name:{width}}{first.bytes_moved / first.steps / 1e3:>10.1f}"
            f"{whole.bytes_moved / first.bytes_moved:>7.1f}x{accuracy:>10.2%}{step * 1e3:>9.1f}"
        )
    return "\n".join(lines)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compression",
        description=bench.compression.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, default=2)
    add("--reducers", type=int, default=2)
    add("--seeds", type=int, default=5, help="trainings of each method")
    add("--epochs", type=int, default=EPOCHS)
    add("--methods", metavar="NAME,...", help=f"beside {WHOLE}; default: all")
    add("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    asked = options.methods.split(",") if options.methods else list(METHODS)
    if unknown := set(asked) - set(METHODS):
        parser.error(f"no method {', '.join(sorted(unknown))}: expected {', '.join(METHODS)}")
    options.names = list(dict.fromkeys([WHOLE, *asked]))
    return options


if __name__ == "__main__":
    main()
