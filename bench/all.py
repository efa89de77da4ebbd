"""Tables in three minutes: limited NICs and loopback, large and small arrays, compared with gloo.

    python -m bench.all --json results.jsonl --plot results.png

Limited NICs need root. Without root this part is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from bench.allreduce.crew import CrewError
from bench.allreduce.lines import keep, show
from bench.allreduce.options import Options
from bench.allreduce.run import measure
from bench.fleet import FleetError
from bench.report.results import collect
from bench.report.table import LEGEND, format_run
from reducer_tools.netlab import LabError

_KIB, _MIB = 1 << 10, 1 << 20
_SMALL = (4 * _KIB, 64 * _KIB, _MIB, 8 * _MIB)
LIMITED = (
    Options(workers=4, reducers=4, sizes=(64 * _MIB,), types=("fp32", "fp32-bf16")),
    Options(workers=4, reducers=4, sizes=_SMALL),
)
_LOOPBACK = Options(workers=4, reducers=1, loopback=True, transport="tcp")
LOOPBACK = (
    replace(_LOOPBACK, sizes=(*_SMALL, 64 * _MIB)),
    replace(_LOOPBACK, sizes=(4 * _KIB, 64 * _MIB), transport="auto"),  # Unix sockets
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.all", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file that the results are appended to")
    parser.add_argument("--plot", type=Path, help="PNG file to draw into")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runs = []
    for options in (*LIMITED, *LOOPBACK):
        if not options.loopback and os.geteuid() != 0:
            print(f"left out: {options.rate} NICs need network namespaces; run it as root\n")
            continue
        try:
            found = collect(show(keep(measure(options), arguments.json), sys.stderr))
        except (LabError, FleetError, CrewError) as error:
            sys.exit(f"bench.all: {error}")
        runs += found
        print("\n".join(map(format_run, found)), end="\n\n", flush=True)
    print(LEGEND)
    if arguments.plot:
        from bench.report.plots import draw

        draw(runs, arguments.plot)


if __name__ == "__main__":
    main()
