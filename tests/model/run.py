"""Check the models of this folder with spin: `python -m tests.model.run`, `--full` for all sizes.

Every model must hold, and every model that lacks a rule must not. Prints for each the states, the
depth, the seconds of its search and what came out; ends with 1 where that is not what was expected.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from tests.model.models import BROKEN, FULL, LAWS, SMALL, Model, expected

TOOLS = ("spin", "gcc")
DEPTH = 100_000


@dataclass(frozen=True)
class Outcome:
    """Of one search; `broken` is the key in LAWS of what did not hold, or empty."""

    states: int
    depth: int
    seconds: float
    broken: str


class SearchError(Exception):
    """The search itself did not work."""


def missing() -> str:
    """What this machine lacks for a search; empty where it lacks nothing."""
    return " ".join(tool for tool in TOOLS if shutil.which(tool) is None)


def search(model: Model, megabytes: int = 2_000, timeout: float | None = None) -> Outcome:
    """Build the verifier of a model and run it; raises SearchError."""
    with tempfile.TemporaryDirectory(prefix="spin-") as folder:
        shutil.copy(model.source(), folder)
        _run(["spin", "-a", *model.macros, model.SOURCE], folder)
        # Optimization takes gcc longer than the search of a small model.
        level = "-O2" if model in FULL else "-O1" if not model.without else "-O0"
        kind = ["-DNP"] if model.cycles else ["-DSAFETY"]
        limit = f"-DMEMLIM={megabytes}"
        _run(["gcc", level, "-w", "-DCOLLAPSE", limit, *kind, "-o", "pan", "pan.c"], folder)
        options = [f"-m{DEPTH}", *(["-l"] if model.cycles else [])]
        said = _run(["./pan", *options], folder, timeout)
    return _outcome(said)


def _run(command: list[str], folder: str, timeout: float | None = None) -> str:
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout
    )
    if ended.returncode:
        said = f"{ended.stdout}{ended.stderr}"[-2_000:]
        raise SearchError(f"{' '.join(command)} ended with {ended.returncode}:\n{said}")
    return ended.stdout


def _outcome(said: str) -> Outcome:
    states = re.search(r"^ *([\d.e+]+) states, stored", said, re.M)
    depth = re.search(r"depth reached (\d+), errors: (\d+)", said)
    seconds = re.search(r"elapsed time ([\d.e+-]+) seconds", said)
    if states is None or depth is None or seconds is None:
        raise SearchError(f"no search took place:\n{said[-2_000:]}")
    if "Search not completed" in said and depth[2] == "0":
        raise SearchError(f"the search did not end:\n{said[-2_000:]}")
    broken = ""
    if depth[2] != "0":
        why = re.search(r"^pan:\d+: (.*)$", said, re.M)
        text = why[1] if why is not None else said
        broken = next((key for key in LAWS if key in text), text)
    return Outcome(
        int(float(states[1])), int(depth[1]), float(seconds[1] if seconds else 0), broken
    )


def report(model: Model, megabytes: int) -> bool:
    """Search one model, print what came out, and tell whether it is what was expected."""
    found = search(model, megabytes)
    verdict = f"breaks {LAWS.get(found.broken, found.broken)}" if found.broken else "holds"
    print(
        f"{model.SOURCE:17} {model!s:32} {found.states:11,} states, depth {found.depth:3}, "
        f"{found.seconds:7.1f} s: {verdict}",
        flush=True,
    )
    return found.broken == expected(model)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the large models, too")
    parser.add_argument("--megabytes", type=int, default=2_000, help="of memory for a search")
    arguments = parser.parse_args()
    if lacking := missing():
        print(f"this machine lacks {lacking} (Debian: apt-get install spin gcc)", file=sys.stderr)
        return 2
    models = [*SMALL, *BROKEN, *(FULL if arguments.full else ())]
    results = [report(model, arguments.megabytes) for model in models]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
