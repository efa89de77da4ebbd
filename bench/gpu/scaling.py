"""All-reduces over loopback by number of workers and of lanes: what the cores of a machine carry.

Runs `bench.allreduce` for each row. Reducers and workers share the cores, so the last column says
whether the cores were the limit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.fleet import ROOT
from bench.report.results import Series, load

_HEAD = (
    "workers  lanes  GB/s each way of a worker  Gbit/s into the reducer  reducer s/GB  "
    "worker s/GB  busy"
)
_SIZE = "64M"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.scaling", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="PATH", help="append the lines")
    parser.add_argument("--most", type=int, help="workers and lanes; default: half of the cores")
    options = parser.parse_args()
    most = options.most or max(1, len(os.sched_getaffinity(0)) // 2)
    print(_HEAD, flush=True)
    for workers, lanes in rows(most):
        _run(workers, lanes, options.json)
        print(row(workers, lanes, load(options.json)[-1].series[0]), flush=True)
    return 0


def rows(most: int) -> Iterator[tuple[int, int]]:
    """(workers, lanes): two workers with more and more lanes, then as many of both."""
    powers = [1 << n for n in range(most.bit_length())]
    yield from ((2, lanes) for lanes in powers)
    yield from ((count, count) for count in powers if count > 2)


def row(workers: int, lanes: int, found: Series) -> str:
    """A row of the table."""
    return (
        f"{workers:7}  {lanes:5}  {found.algbw:26.2f}  {8 * workers * found.algbw:23.1f}  "
        f"{found.reducer_cost or 0:12.2f}  {found.worker_cost:11.2f}  {found.busy or 0:4.0%}"
    )


def _run(workers: int, lanes: int, path: Path) -> None:
    command = [sys.executable, "-m", "bench.allreduce", "--loopback", "--peers", "none"]
    command += ["--workers", str(workers), "--reducers", "1", "--lanes", str(lanes)]
    command += ["--sizes", _SIZE, "--repeats", "5", "--warmup", "1", "--json", str(path.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench.gpu.scaling: {' '.join(command)} failed:\n{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
