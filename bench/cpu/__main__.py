"""CPU time per GB of a lane and of a worker, beside programs in C that move the same bytes.

    python -m bench.cpu                              # 4 workers, chunks of 1 MiB and of 64 KiB
    python -m bench.cpu --chunk-kib 64 --out-of-place --json results.jsonl
    python -m bench.cpu --rate 1gbit --chunk-kib 64 --window-kib 512

The CPU time of a lane is the user and system time of the whole server, for each GB of contributions
received; for each GB received, the server sends a GB. The CPU time of a worker counts all its
threads during the exchanges, for each GB of array; a worker sends a GB and receives a GB.
`bench.pairs` describes the sides.

The result replaces the array, as gradients are summed. The C workers then copy each chunk before
they send it, into memory that they use again and again: a worker needs such a copy if it has to
send a chunk again. With ``--out-of-place`` the result has an array of its own, and the C workers
copy nothing.

The traffic uses loopback. With ``--rate`` every worker and the server have a NIC of that rate, and
the result is the time of a round. This shows the cost of rank order, exactly once and retention
when the network is the limit. Needs root (see `reducer_tools.netlab`), make and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.cpu.table import Turn, format_table, verdicts
from bench.fleet import FleetError
from bench.machine import facts
from bench.pairs import FLOOR, OURS, C, Case, in_turns, open_pairs
from reducer_tools.netlab import LabError, allow_congestion


def main() -> int:
    options = _parser().parse_args()
    try:
        options.congestion = allow_congestion(options.congestion)
        _keep(options.json, {"what": "context", **facts()})
        for chunk_kib in options.chunk_kib:
            _report(_case(options, chunk_kib << 10), options)
    except (LabError, FleetError) as error:
        sys.exit(f"bench.cpu: {error}")
    return 0


def _report(case: Case, options: argparse.Namespace) -> None:
    """Measure one case and print its table."""
    turns = []
    for turn in _measure(case, options):
        line = {"what": "cpu", **asdict(turn), **asdict(case), "rounds": options.rounds}
        _keep(options.json, line)
        turns.append(turn)
    print("\n".join([format_table(case, turns), *verdicts(case, turns), ""]), flush=True)


def _measure(case: Case, options: argparse.Namespace) -> Iterator[Turn]:
    gigabytes = options.rounds * case.workers * case.bytes / 1e9
    with open_pairs(case, FLOOR, C, OURS) as pairs:
        for number, side, pair in in_turns(pairs, options.warmup + options.repeats):
            batches = [pair.run() for _ in range(options.rounds)]
            if number >= options.warmup:
                yield Turn(
                    side,
                    sum(batch.lane_cpu for batch in batches) / gigabytes,
                    sum(batch.worker_cpu for batch in batches) / gigabytes,
                    sum(batch.seconds for batch in batches) / options.rounds,
                )


def _case(options: argparse.Namespace, chunk_bytes: int) -> Case:
    return Case(
        workers=options.workers,
        bytes=options.mib << 20,
        chunk_bytes=chunk_bytes,
        window_bytes=options.window_kib << 10,
        rounds=1,
        in_place=not options.out_of_place,
        congestion=options.congestion,
        rate=options.rate,
        unix=options.unix,
    )


def _keep(path: Path | None, line: dict[str, object]) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cpu",
        description="CPU time per GB of a lane and of a worker, beside programs in C.",
    )
    for name, default in (
        ("workers", 4),
        ("mib", 64),
        ("window-kib", 2048),
        ("rounds", 4),
        ("warmup", 1),
        ("repeats", 7),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--chunk-kib", type=_numbers, default=[1024, 64], help="such as 1024,64")
    parser.add_argument("--out-of-place", action="store_true", help="results in a second array")
    parser.add_argument("--unix", action="store_true", help="ours over Unix sockets")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--rate", help="of every NIC, in tc's words (1gbit); loopback without it")
    parser.add_argument("--json", type=Path, help="file that the results are appended to")
    return parser


if __name__ == "__main__":
    sys.exit(main())
