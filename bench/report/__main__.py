"""``python -m bench.report``: prints tables, and draws a plot if wanted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.report.results import ResultsError, load
from bench.report.table import format_runs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report", description="Tables and plots of bench.allreduce's results."
    )
    parser.add_argument("results", type=Path, nargs="+", help="files of JSON lines")
    parser.add_argument("--plot", type=Path, help="PNG file to draw into")
    options = parser.parse_args()
    try:
        runs = [run for path in options.results for run in load(path)]
    except (OSError, ResultsError) as error:
        sys.exit(f"bench.report: {error}")
    print(format_runs(runs))
    if options.plot:
        from bench.report import hosted_plot, plots

        hosted = runs and all(run.series and run.series[0].topology.hosted for run in runs)
        (hosted_plot if hosted else plots).draw(runs, options.plot)


if __name__ == "__main__":
    main()
