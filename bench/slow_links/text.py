"""Loss against bytes and against time at a slow link, on a small transformer and real text.

Each method trains the same model on the same text with the same steps, batches and learning rates.
The reducers count the bytes that they receive from all workers and send to them. The time at a slow
link is computed: the measured computation of a worker that has a core for itself, plus the measured
time of an exchange of all workers through the emulated link, less the part of it that overlaps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import facts, load
from bench.slow_links.contenders import METHODS
from bench.slow_links.corpus import Corpus
from bench.slow_links.keeper import Keeper
from bench.slow_links.model import CONTEXT
from bench.slow_links.report import show
from bench.slow_links.results import LINK, Pace, Point
from bench.slow_links.site import open_site

_WORKER = "bench.slow_links.worker"
_WARMUP = 5
# "pace" needs a quiet machine, "train" gives the same results on any.
PARTS = ("pace", "train")


class DisagreementError(Exception):
    """The ranks ended with different parameters."""


def main() -> None:
    options = _parse_arguments()
    with ExitStack() as stack:
        keep = Keeper(stack.enter_context(options.json.open("w")) if options.json else None)
        began = time.perf_counter()
        keep("context", **facts(), **_describe(options))
        for part in options.parts:
            {"pace": _measure_paces, "train": _train_all}[part](options, keep)
        keep("end", load=load(), seconds=time.perf_counter() - began)
    show(keep.lines, options.plot)


def _measure_paces(options: argparse.Namespace, keep: Keeper) -> None:
    compute = measure_compute(options.exchanges)
    print(f"computation of a step: {compute * 1e3:.1f} ms", flush=True)
    ranks: dict[str, list[list[float]]] = {name: [] for name in options.names}
    case = {"part": "exchange", "steps": options.exchanges, "warmup": _WARMUP}
    with open_site(options.workers, options.reducers, LINK) as site:
        for _, line in site.run(_WORKER, {**case, "methods": options.names}):
            name, of_method = line["method"], ranks[line["method"]]
            of_method.append(line["seconds"])
            if len(of_method) == options.workers:
                pace = _pace(name, compute, of_method)
                keep("pace", method=name, pace=asdict(pace), load=load())
                print(f"{name}: an exchange takes {pace.exchange * 1e3:.1f} ms", flush=True)


def measure_compute(steps: int) -> float:
    with open_site(1, 0, None) as alone:
        ((_, line),) = alone.run(_WORKER, {"part": "compute", "steps": steps})
    return float(statistics.median(line["seconds"]))


def _pace(name: str, compute: float, ranks: list[list[float]]) -> Pace:
    """An exchange ends with its slowest worker; the median of all exchanges counts."""
    exchange = statistics.median(map(max, zip(*ranks, strict=True)))
    method = METHODS[name]
    return Pace(compute, exchange, method.every, method.fragments, method.delay)


def _train_all(options: argparse.Namespace, keep: Keeper) -> None:
    case = {
        "part": "train", "methods": options.names, "seed": options.seed,
        "steps": options.steps, "evaluate": options.evaluate,
    }  # fmt: skip
    points: dict[str, list[Point]] = {name: [] for name in options.names}
    digests: dict[str, list[str]] = {name: [] for name in options.names}
    with open_site(options.workers, options.reducers, None) as site:
        for _, line in site.run(_WORKER, case):
            name = line.pop("method")
            if "digest" not in line:
                points[name].append(Point(**line))
                continue
            digests[name].append(line["digest"])
            if len(digests[name]) == options.workers:
                end(name, points[name], digests[name], keep)


def end(name: str, points: list[Point], digests: list[str], keep: Keeper) -> None:
    if len(different := set(digests)) != 1:
        raise DisagreementError(f"{name}: {len(different)} different sets of parameters at the end")
    keep("curve", method=name, points=[point._asdict() for point in points])
    print(f"{name}: {points[-1].loss:.4f}, {points[-1].bytes / 1e6:.1f} MB", flush=True)


def _describe(options: argparse.Namespace) -> dict[str, Any]:
    corpus = Corpus(CONTEXT)
    return {
        "workers": options.workers,
        "reducers": options.reducers,
        "steps": options.steps,
        "seed": options.seed,
        "rate": LINK.rate,
        "rtt": LINK.rtt,
        "text_bytes": corpus.size,
        "text_sha256": corpus.sha256,
    }


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.slow_links.text",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, default=4)
    add("--reducers", type=int, default=2)
    add("--steps", type=int, default=2000)
    add("--exchanges", type=int, default=50, help="measured exchanges and steps")
    add("--evaluate", type=int, default=100, help="steps between two losses")
    add("--seed", type=int, default=1)
    add("--methods", metavar="NAME,...", help="default: all")
    add("--parts", choices=PARTS, nargs="+", default=PARTS, help="by default both")
    add("--json", type=Path, metavar="PATH")
    add("--plot", type=Path, metavar="PATH")
    options = parser.parse_args()
    options.names = options.methods.split(",") if options.methods else list(METHODS)
    if unknown := set(options.names) - set(METHODS):
        parser.error(f"no method {', '.join(sorted(unknown))}: expected {', '.join(METHODS)}")
    return options


if __name__ == "__main__":
    main()
