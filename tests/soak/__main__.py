"""The bars of the proof with real sockets and processes, in full, or a part of them.

python -m tests.soak                        # all, as long as they take
python -m tests.soak kills storm --scale 0.1 --seed 7
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from reducer_tools.netlab import LabError
from tests.soak import (
    Figures,
    Say,
    bits,
    communicators,
    crowds,
    elastic,
    elastic_training,
    flips,
    frame_storm,
    freezes,
    kills,
    lost_workers,
    neighbours,
    orders,
    overload,
    partitions,
    rolling,
    tables,
)


class Bar(NamedTuple):
    """`full` is what the full run takes; of what, its module says."""

    run: Callable[[int, int, Say], Figures]
    full: int
    promise: str


BARS = {
    "kills": Bar(kills.run, 10_000, "B1, B12: reducers killed every 20 turns, no step or bit lost"),
    "rolling": Bar(rolling.run, 200, "B11: restarts by SIGTERM, no failed step"),
    "freezes": Bar(freezes.run, 20, "B3: reducers stopped, recovered within 2.5 s"),
    "workers": Bar(lost_workers.run, 50, "B4: workers killed (1 s) or stopped (6 s), named to all"),
    "elastic": Bar(elastic.run, 500, "elastic: workers lost and replaced, sums exact, p99 2 s"),
    "elastic_training": Bar(
        elastic_training.run, 200, "elastic: digits while workers come and go; accuracy as good"
    ),
    "tables": Bar(tables.run, 200, "tables: reducers killed, parameters are the ledger, p99 1 s"),
    "bits": Bar(bits.run, 10, "B8: same bits for all reducers, chunks, orders of arrival, kills"),
    "partitions": Bar(partitions.run, 1, "B24, B3, B4: packets vanish; 2 s, a worker 6 s (root)"),
    "crowds": Bar(crowds.run, 5_000, "B14: strangers cost 5 % of throughput, a join 1 s at most"),
    "neighbours": Bar(neighbours.run, 5, "B15: a job keeps 90 % of its share beside a noisy one"),
    "orders": Bar(orders.run, 200, "8 keys in any order on a lane with the least room"),
    "overload": Bar(overload.run, 60, "B21: four busy processes a core, no worker taken for dead"),
    "nccl": Bar(communicators.run, 1_000, "A6: communicators come and go, nothing is left behind"),
    "storm": Bar(frame_storm.run, 100_000, "B7: 5 % of all frames harmed, 0 double counts"),
    "flips": Bar(flips.run, 10_000, "B17: all flipped bits found"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:16} {b.full:>9,}  {b.promise}" for name, b in BARS.items()),
    )
    parser.add_argument("bars", nargs="*", metavar="BAR", help="which; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="of the full counts")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    if unknown := set(options.bars) - set(BARS):
        parser.error(f"no bar {', '.join(sorted(unknown))}: expected some of {', '.join(BARS)}")
    for name in options.bars or BARS:
        bar = BARS[name]
        count = max(1, round(bar.full * options.scale))
        began = time.monotonic()
        print(f"{name}: {bar.promise}; {count:,}, seed {options.seed}", flush=True)
        try:
            figures = bar.run(count, options.seed, lambda text: print(f"    {text}", flush=True))
        except LabError as error:
            print(f"  skipped: {error}")
            continue
        figures = {**figures, "took": f"{time.monotonic() - began:.0f} s"}
        width = max(map(len, figures))
        for what, figure in figures.items():
            print(f"  {what:{width}}  {figure}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
