"""``python -m bench.allreduce``: measures, writes the lines to a file and prints the table."""

from __future__ import annotations

import signal
import sys

from bench.allreduce.crew import CrewError
from bench.allreduce.lines import keep, show
from bench.allreduce.options import parse_options
from bench.allreduce.run import measure
from bench.fleet import FleetError
from bench.report.results import collect
from bench.report.table import format_runs
from reducer_tools.netlab import LabError


def main() -> None:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        runs = collect(show(keep(measure(options), options.json), sys.stderr))
    except (LabError, FleetError, CrewError) as error:
        sys.exit(f"bench.allreduce: {error}")
    print(format_runs(runs))


if __name__ == "__main__":
    main()
