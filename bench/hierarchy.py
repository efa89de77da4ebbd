"""Compares all-reduce in two levels with flat all-reduce: several ranks per host, limited NICs.

    python -m bench.hierarchy                                   # 2 hosts x 2 ranks, 64 MiB; root
    python -m bench.hierarchy --local 4 --size-kib 1024 --json

Both run in the same processes and take turns. A time is measured from the start of the last rank to
the end of the slowest rank. Every sum is checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.fleet import Fleet, FleetError
from bench.hierarchy_worker import CONTENDERS
from reducer_tools.netlab import Lab, LabError, Nic, allow_congestion

_SECONDS = 300.0


def main() -> int:
    options = _parser().parse_args()
    try:
        options.congestion = allow_congestion(options.congestion)
        times = _measure(options)
    except (LabError, FleetError) as error:
        sys.exit(f"hierarchy: {error}")
    _print_table(options, times)
    return 0


def _measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds by contender."""
    nic = Nic(options.rate)
    workers = [f"host{rank // options.local}" for rank in range(options.hosts * options.local)]
    reducers = [f"reducer{number}" for number in range(options.reducers)]
    times: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(dict.fromkeys([*workers, *reducers], nic), options.congestion) as lab,
        Fleet(lab) as fleet,
    ):
        case = {
            "addresses": fleet.start_reducers(reducers),
            "world": len(workers),
            "local": options.local,
            "bytes": options.size_kib << 10,
            "turns": options.warmup + options.repeats,
            "store": str(Path(folder, "store")),
        }
        cases = [case | {"rank": rank} for rank in range(len(workers))]
        lines = fleet.run_workers(workers, "bench.hierarchy_worker", cases, _SECONDS)
        for line in _slowest(lines, len(workers)):
            if options.json:
                print(json.dumps(line), flush=True)
            if line["turn"] >= options.warmup:
                times[line["contender"]].append(line["seconds"])
    return times


def _slowest(lines: Iterator[tuple[int, dict[str, Any]]], world: int) -> Iterator[dict[str, Any]]:
    """One line for each measurement, when all ranks have reported the measurement."""
    open_: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for _, line in lines:
        found = open_[line["turn"], line["contender"]]
        found.append(line)
        if len(found) == world:
            seconds = max(one["ended"] for one in found) - max(one["began"] for one in found)
            yield {"turn": line["turn"], "contender": line["contender"], "seconds": seconds}


def _print_table(options: argparse.Namespace, times: dict[str, list[float]]) -> None:
    print(
        f"{options.hosts} hosts x {options.local} ranks, {options.reducers} reducers, "
        f"{options.rate} NICs, {options.size_kib} KiB, {options.congestion}"
    )
    flat = statistics.median(times["flat"])
    for name in CONTENDERS:
        median = statistics.median(times[name])
        spread = f"{min(times[name]) * 1e3:.1f} to {max(times[name]) * 1e3:.1f}"
        print(f"{name:>10} {median * 1e3:9.1f} ms ({spread})  {flat / median:5.2f} x as fast")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare sums in two levels with flat sums.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--local", type=int, default=2, help="ranks on each host")
    parser.add_argument("--reducers", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of every NIC")
    parser.add_argument("--size-kib", type=int, default=64 << 10)
    parser.add_argument("--warmup", type=int, default=1, help="turns")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument(
        "--json", action="store_true", help="also print a line for each measurement"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
