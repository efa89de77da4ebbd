"""Handwritten digits with local steps, beside data parallel: accuracy, and bytes at the reducers.

The data and the batches come from bench.compression; so do the net and the inner optimizer, unless
another recipe is chosen. After the last step DiLoCo exchanges once more what was not exchanged yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

from bench.compression.digits import save_digits
from bench.machine import facts
from bench.slow_links.methods import METHODS, WHOLE, Result, verdicts, with_wires
from bench.slow_links.rank import Job, Trained, work
from bench.slow_links.recipes import RECIPES
from reducer_client import local_reducers


def run(job: Job, reducers: int) -> list[dict[str, Trained]]:
    """The trainings of rank 0. Raises RuntimeError if ranks end with different bits."""
    with (
        tempfile.TemporaryDirectory() as folder,
        local_reducers(reducers) as addresses,
        ProcessPoolExecutor(job.workers, get_context("spawn")) as pool,
    ):
        save_digits(Path(folder) / "digits.npz")
        job = replace(job, addresses=addresses, folder=Path(folder))
        started = [pool.submit(work, rank, job) for rank in range(job.workers)]
        ranks = [future.result() for future in started]
    for seed in range(job.seeds):
        for name in job.names:
            if len({of_rank[seed][name].digest for of_rank in ranks}) != 1:
                raise RuntimeError(f"{name}, seed {seed + 1}: the ranks hold different parameters")
    return ranks[0]


def summary(runs: list[dict[str, Trained]], name: str) -> Result:
    of = [trained[name] for trained in runs]
    accuracies = [each.accuracy for each in of]
    nbytes = statistics.fmean(each.nbytes for each in of)
    return Result(statistics.fmean(accuracies), min(accuracies), nbytes, of[0].steps)


def format_table(results: dict[str, Result]) -> str:
    """A table with one line per method; values are means over the seeds."""
    lines = [f"{'method':20}{'KB/step':>9}{'fewer':>9}{'accuracy':>10}{'lowest':>9}"]
    whole = results[WHOLE].nbytes
    lines += [
        f"{name:20}{r.nbytes / r.steps / 1e3:>9.1f}{whole / r.nbytes:>8.1f}x"
        f"{r.accuracy:>10.2%}{r.lowest:>9.2%}"
        for name, r in results.items()
    ]
    return "\n".join(lines)


def main() -> None:
    options = _parse_arguments()
    job = Job(
        options.workers, options.names, options.wires, options.seeds, options.recipe,
        options.epochs or RECIPES[options.recipe].epochs, [], Path(),
    )  # fmt: skip
    runs = run(job, options.reducers)
    results = {name: summary(runs, name) for name in options.names}
    print(format_table(results), *verdicts(results), sep="\n")
    if options.json:
        lines = [
            {"method": name, "seed": seed, "workers": options.workers, **asdict(of[name])}
            for seed, of in enumerate(runs, 1)
            for name in options.names
        ]
        context = {"what": "context", **facts()}
        options.json.write_text("".join(f"{json.dumps(line)}\n" for line in (context, *lines)))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.slow_links.digits",
        description=sys.modules[__name__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, default=4)
    add("--reducers", type=int, default=2)
    add("--seeds", type=int, default=5, help="trainings of each method")
    add("--recipe", choices=RECIPES, default="compression", help="the net and inner optimizer")
    add("--epochs", type=int, help="default: as the recipe says")
    add("--wires", default="", metavar="DTYPE,...", help="more trainings with H 50 in these dtypes")
    add("--methods", metavar="NAME,...", help=f"beside {WHOLE}; default: all")
    add("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    options.wires = [wire for wire in options.wires.split(",") if wire]
    known = with_wires(options.wires)
    asked = options.methods.split(",") if options.methods else list(known)
    if unknown := set(asked) - set(known):
        parser.error(f"no method {', '.join(sorted(unknown))}: expected {', '.join(METHODS)}")
    options.names = list(dict.fromkeys([WHOLE, *asked]))
    return options


if __name__ == "__main__":
    main()
