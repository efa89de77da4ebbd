"""The time of one small all-reduce, beside a worker and a reducer in C.

    python -m bench.latency                          # 4 KiB, 4 workers
    python -m bench.latency --sizes 4KiB,64KiB,256KiB --unix

A batch of thousands of all-reduces runs one right after the other, in place; each is one chunk. The
time of a turn is the median of its batch at the slowest worker, measured in the worker's process. A
batch is shorter for large arrays, so that its arrays fit into 64 MiB. `bench.pairs` describes the
sides; both check every CRC and every sum. Needs root (see `reducer_tools.netlab`), make and a C
compiler.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bench.fleet import FleetError
from bench.pairs import OURS, C, Case, in_turns, open_pairs, verdict
from reducer.units import parse_size
from reducer_tools.netlab import LabError, allow_congestion

# The largest ratio of our time to the C pair's time, with 4 workers and this size.
LIMIT, LIMIT_BYTES = 1.3, 4096
_BATCH_BYTES = 64 << 20


def main() -> int:
    options = _parser().parse_args()
    try:
        options.congestion = allow_congestion(options.congestion)
        for size in options.sizes:
            case = _case(options, size)
            print(_format(case, _measure(case, options.warmup, options.repeats)), flush=True)
    except (LabError, FleetError) as error:
        sys.exit(f"bench.latency: {error}")
    return 0


def _measure(case: Case, warmup: int, repeats: int) -> dict[str, list[float]]:
    """The seconds of each turn, by side."""
    seconds: dict[str, list[float]] = defaultdict(list)
    with open_pairs(case, C, OURS) as pairs:
        for turn, side, pair in in_turns(pairs, warmup + repeats):
            batch = pair.run()
            if turn >= warmup:
                seconds[side].append(batch.seconds)
    return seconds


def _format(case: Case, seconds: Mapping[str, Sequence[float]]) -> str:
    medians = {side: statistics.median(seconds[side]) for side in (C, OURS)}
    title = (
        f"All-reduce of {case.bytes / 1024:g} KiB: float32, {case.workers} workers, in place, "
        f"{case.network};\n{len(seconds[OURS])} turns of {case.rounds} rounds, every sum checked\n"
    )
    lines = [title, f"{'':<7} {'us':>9} {'min':>9} {'max':>9} {'x C':>7}"]
    for side, median in medians.items():
        low, high = min(seconds[side]), max(seconds[side])
        lines.append(
            f"{side:<7} {median * 1e6:>9.1f} {low * 1e6:>9.1f} {high * 1e6:>9.1f} "
            f"{median / medians[C]:>7.3f}"
        )
    lines.append("")
    if (case.workers, case.bytes) == (4, LIMIT_BYTES):
        lines += [verdict("time", medians[OURS] / medians[C], "C", LIMIT), ""]
    return "\n".join(lines)


def _case(options: argparse.Namespace, size: int) -> Case:
    return Case(
        workers=options.workers,
        bytes=size,
        chunk_bytes=size,
        window_bytes=max(size, 1 << 20),
        rounds=max(1, min(options.rounds, _BATCH_BYTES // size)),
        in_place=True,
        congestion=options.congestion,
        unix=options.unix,
    )


def _sizes(text: str) -> list[int]:
    return [parse_size(size) for size in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.latency",
        description="The time of one small all-reduce, beside programs in C.",
    )
    parser.add_argument("--sizes", type=_sizes, default=[LIMIT_BYTES], help="such as 4KiB,64KiB")
    for name, default in (("workers", 4), ("rounds", 3000), ("warmup", 1), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--unix", action="store_true", help="ours over Unix sockets")
    parser.add_argument("--congestion", default="cubic")
    return parser


if __name__ == "__main__":
    sys.exit(main())
