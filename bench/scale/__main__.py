"""Simulated 8 to 1,024 workers and matching reducers: time, memory, connections, CPU.

    python -m bench.scale                                   # the tables; about three minutes
    python -m bench.scale --workers 8,64 --sizes 64MiB --json out.jsonl --plot out.png
    python -m bench.scale --check                           # compare the model with measurements

The lanes run the real core (`reducer.core.lane.Lane`) with sizes instead of memory. Network and
CPU are modelled: NICs have a rate in each direction, latency, turns, queues, and 66 bytes of
headers per packet; lanes and workers have a price per GB and per frame. Times are measured from a
common barrier to the last worker, as multiples of N/BW.

In a symmetric round all lanes are alike. So only `--real-lanes` of them are simulated, each with
the sessions of all workers; the other lanes are only load on the workers' NICs and CPUs. This
assumes that all lanes do the same at the same time, which is pessimistic if a lane has only one or
two chunks.

The core's real time is measured around each call and reported. The clock of the simulation uses
only prices, so a run gives the same times on any machine. The prices come from measurements
(float32, 4 workers, loopback, cubic), fitted over the chunk sizes; README.md in this folder has the
figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.scale import check
from bench.scale.cluster import Case
from bench.scale.host import Prices
from bench.scale.report import format_bytes, print_lanes, print_rows
from bench.scale.sweep import Row, lane_counts, rows
from reducer.units import parse_size

LANE_CPU_S_PER_GB = 0.24
LANE_FRAME_US = 8.0
WORKER_CPU_S_PER_GB = 0.33
WORKER_FRAME_US = 1.0
CORES = 16
LANE_COUNTS = (1, 2, 4, 8, 16)
# Sizes for the table of lanes per host: few hosts, so that a lane's part is not too small.
LANES_WORKERS = 16
LANES_BYTES = 400_000_000


def main() -> int:
    options = _parser().parse_args()
    if options.check:
        check.print_pairs(check.against_engine((8, 16)))
        check.print_pairs(check.against_all_lanes((8, 16, 64), options.real_lanes))
        check.print_pairs(check.against_measured())
        return 0
    found: list[Row] = []
    for row in rows(_cases(options)):
        found.append(row)
        size = format_bytes(row.case.round_bytes)
        print(f"simulated {row.case.workers} workers, {size}", file=sys.stderr)
    print_rows(found)
    lanes = list(lane_counts(_lanes_case(options), LANE_COUNTS))
    print_lanes(lanes, CORES)
    if options.json:
        lines = [*(row.as_dict() for row in found), *(one.as_dict() for one in lanes)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        options.json.write_text(text, encoding="ascii")
    if options.plot:
        from bench.scale.plot import plot

        plot(found, options.plot)
    return 0


def _cases(options: argparse.Namespace) -> list[Case]:
    return [
        _case(options, workers, size, options.lanes, options.gbit)
        for size in options.sizes
        for workers in options.workers
    ]


def _lanes_case(options: argparse.Namespace) -> Case:
    case = _case(options, LANES_WORKERS, LANES_BYTES, 1, options.host_gbit)
    return replace(case, worker_prices=Prices())  # measures the reducers' hosts, not the workers


def _case(options: argparse.Namespace, workers: int, size: int, lanes: int, gbit: float) -> Case:
    return Case(
        workers=workers,
        reducers=max(1, round(workers * options.reducers_per_worker)),
        lanes=lanes,
        real_lanes=options.real_lanes,
        round_bytes=size,
        rate=gbit * 1e9 / 8,
        latency=options.latency_us / 1e6,
        segment=options.segment,
        memory=options.memory,
        credit=options.credit,
        lane_prices=Prices(options.lane_cpu_s_per_gb, options.lane_frame_us / 1e6),
        worker_prices=Prices(options.worker_cpu_s_per_gb, options.worker_frame_us / 1e6),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description="Simulated 8 to 1,024 workers."
    )
    add = parser.add_argument
    add("--workers", type=_integers, default=[8, 16, 32, 64, 128, 256, 512, 1024])
    add("--sizes", type=_sizes, default=[64 << 20, 400_000_000], help="such as 64MiB,400MB")
    add("--reducers-per-worker", type=float, default=1.0)
    add("--lanes", type=int, default=1, help="lanes of each reducer")
    add("--real-lanes", type=int, default=1, help="lanes that are simulated")
    add("--gbit", type=float, default=10.0, help="Gbit/s of every host, each way")
    add("--latency-us", type=float, default=25.0, help="from NIC to NIC")
    add(
        "--segment",
        type=parse_size,
        default=4 << 10,
        help="bytes that a flow sends in its turn at a NIC",
    )
    add("--memory", type=parse_size, default=8 << 30, help="--memory of each reducer")
    add("--credit", type=parse_size, default=4 << 20, help="--credit of each reducer")
    add(
        "--lane-cpu-s-per-gb",
        type=float,
        default=LANE_CPU_S_PER_GB,
        help="CPU seconds of a lane for each GB received and sent",
    )
    add("--lane-frame-us", type=float, default=LANE_FRAME_US, help="CPU time of a frame, in or out")
    add(
        "--worker-cpu-s-per-gb",
        type=float,
        default=WORKER_CPU_S_PER_GB,
        help="CPU seconds of the engine for each GB",
    )
    add(
        "--worker-frame-us",
        type=float,
        default=WORKER_FRAME_US,
        help="CPU time of a frame, in or out",
    )
    add("--host-gbit", type=float, default=32.0, help="rate of the hosts in the table of lanes")
    add("--check", action="store_true", help="compare the model with engine and measurements")
    add("--json", type=Path, help="one line for each row")
    add("--plot", type=Path, help="a PNG")
    return parser


def _integers(text: str) -> Sequence[int]:
    return [int(part) for part in text.split(",")]


def _sizes(text: str) -> Sequence[int]:
    return [parse_size(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
