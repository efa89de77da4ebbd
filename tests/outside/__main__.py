"""Runs the test suites of others on real reducers: ``python -m tests.outside [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.outside import horovod, torch_distributed
from tests.outside.cases import OUTCOMES, Cases, UnavailableError, differences, expectation

# Each takes a folder of its own, and returns the cases of each rank.
SUITES: dict[str, Callable[[Path], list[Cases]]] = {
    "horovod-torch": horovod.run_torch,
    "horovod-tensorflow": horovod.run_tensorflow,
    "torch": torch_distributed.run,
}
FOLDER = Path("build/outside").resolve()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITES))
    names = parser.parse_args().names or list(SUITES)
    unknown = sorted(set(names) - set(SUITES))
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}: expected some of {', '.join(SUITES)}")
    results = [_is_as_expected(name) for name in names]
    return 0 if all(results) else 1


def _is_as_expected(name: str) -> bool:
    """Run a suite and print what it came to; also True where it cannot be had."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        ranks = SUITES[name](folder)
    except UnavailableError as reason:
        print(f"{name}: skipped: {reason}", flush=True)
        return True
    same = True
    for rank, cases in enumerate(ranks):
        counts = Counter(cases.values())
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
        print(f"{name}, rank {rank}: {told}", flush=True)
        for difference in differences(cases, expectation(name)):
            same = False
            print(f"  {difference}; see {folder}", flush=True)
    return same


if __name__ == "__main__":
    sys.exit(main())
