"""Check `failover.pml` with spin: `python -m tests.model.run`, `--full` for the large models too.

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
from dataclasses import dataclass, replace
from pathlib import Path

SOURCE = Path(__file__).with_name("failover.pml")
TOOLS = ("spin", "gcc")
DEPTH = 100_000
# What an assertion of the model says when it does not hold: part of its text, and the law.
LAWS = {
    ".sum==": "I1-I3, a result is each rank's contribution, once, in rank order",
    ".held>>": "I6, nothing is freed that a rank lacks",
    ".route>": "I9, the routes that a process knows never go back",
    "slot==": "no frame comes before the route that it was sent under",
    ".freed==": "I11, every rank gets every result and frees every copy",
    "non-progress": "I11, no run goes on for ever",
}


@dataclass(frozen=True)
class Model:
    """Sizes and faults as macros of the source; `without` is the rule that is taken away.

    As text, workers x reducers x chunks x rounds and faults.

    `apart`: each chunk moves in runs of its own, for two do not read each other (README.md).
    `cycles`: look for runs without an end, instead of states that break a law.
    """

    workers: int = 2
    chunks: int = 1
    rounds: int = 2
    kills: int = 0
    breaks: int = 0
    alarms: int = 0
    without: str = ""
    apart: bool = False
    cycles: bool = False

    @property
    def macros(self) -> list[str]:
        sizes = {
            "WORKERS": self.workers, "CHUNKS": self.chunks, "ROUNDS": self.rounds,
            "KILLS": self.kills, "BREAKS": self.breaks, "ALARMS": self.alarms,
        }  # fmt: skip
        switches = [self.without, "APART" if self.apart else ""]
        values = [f"{name}={value}" for name, value in sizes.items()]
        return [f"-D{macro}" for macro in (*values, *switches) if macro]

    def __str__(self) -> str:
        faults = {"kill": self.kills, "break": self.breaks, "alarm": self.alarms}
        struck = "+".join(f"{number}{name}" for name, number in faults.items() if number)
        text = f"{self.workers}x2x{self.chunks}x{self.rounds} {struck}"
        marks = ("apart" if self.apart else "", self.without, "cycles" if self.cycles else "")
        return " ".join(filter(None, (text, *marks)))


# What each rule holds up, and the fault that shows it. README.md has a line for each.
KILL, BREAK = Model(kills=1), Model(breaks=1)
RULES = {
    "NO_RANK_ORDER": (KILL, ".sum=="),
    "NO_DEDUPE": (BREAK, ".sum=="),
    "NO_COPY": (KILL, ".sum=="),
    "NO_ROUND": (KILL, ".freed=="),
    "NO_INCARNATION": (KILL, ".freed=="),
    "NO_REDELIVERY": (BREAK, ".freed=="),
    "NO_RESEND": (BREAK, ".freed=="),
    "NO_RESEND_OF_HELD": (KILL, ".freed=="),
    "NO_NEW_POSITIONS": (KILL, ".freed=="),
    "NO_RELAY": (KILL, ".freed=="),
    "NO_WAIT_FOR_ALL": (KILL, ".held>>"),
    "NO_WAIT_FOR_STABLE": (KILL, ".held>>"),
    "NO_ROUTE_FIRST": (KILL, "slot=="),
    "NO_STALE_DROP": (KILL, "slot=="),
    "NO_NEWER_ROUTE": (KILL, ".route>"),
}
BROKEN = tuple(replace(model, without=rule) for rule, (model, _) in RULES.items())
SMALL = (
    KILL,
    BREAK,
    Model(chunks=2, kills=1, rounds=1),
    Model(workers=3, kills=1, rounds=1),
    Model(chunks=2, breaks=1, rounds=1),
    Model(alarms=1, kills=1, rounds=1),
    Model(kills=1, breaks=1, rounds=1, cycles=True),
    Model(workers=3, chunks=2, kills=1, apart=True),
)
FULL = (
    Model(kills=1, breaks=1),
    Model(kills=2),
    Model(chunks=2, kills=1, breaks=1, rounds=1),
    Model(chunks=2, kills=1),
    Model(workers=3, kills=1),
    Model(workers=3, chunks=2, kills=1, rounds=1),
    Model(workers=3, chunks=2, breaks=1, apart=True),
    Model(workers=3, chunks=2, alarms=1, apart=True),
    *(replace(model, workers=3, chunks=2, apart=True) for model in BROKEN),
)


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
        shutil.copy(SOURCE, folder)
        _run(["spin", "-a", *model.macros, SOURCE.name], folder)
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


def expected(model: Model) -> str:
    return RULES[model.without][1] if model.without else ""


def report(model: Model, megabytes: int) -> bool:
    """Search one model, print what came out, and tell whether it is what was expected."""
    found = search(model, megabytes)
    verdict = f"breaks {LAWS.get(found.broken, found.broken)}" if found.broken else "holds"
    print(
        f"{model!s:32} {found.states:11,} states, depth {found.depth:3}, "
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
