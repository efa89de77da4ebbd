"""What a GB costs the reducer: ours beside a minimal C reducer, and that beside a C echo.

    python -m bench.reducer_cpu                      # 64 MiB rounds, 4 workers, 1 MiB chunks
    python -m bench.reducer_cpu --chunk-kib 64 --json

CPU seconds (user and system, all threads and processes of the server) for each GB of contributions
that it receives over loopback; each GB in is also a GB out. All servers live for the whole run, in
a namespace of their own with one congestion control for both sides, and take turns. Every sum is
checked. ``ours`` is `reducer serve --lanes 1` with every check on and our Python client; the C
programs of bench/reference check nothing. Needs root (see `bench.netlab`), make and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from bench.fleet import ROOT, Fleet, FleetError, OneHost, cpu_seconds
from bench.netlab import Lab, LabError, Nic

BUILT = ROOT / "build" / "reference"
HOST = "machine"  # the lab's only one: everything runs over its loopback
SIDES = ("echo", "C reducer", "ours")
# What a side may cost, as a multiple of another, with 4 workers and chunks of 1 MiB.
LIMITS = (("C reducer", "echo", 1.15), ("ours", "C reducer", 1.25))


@dataclass(frozen=True)
class Case:
    """What is measured. ``rounds`` of ``mib`` are one measurement."""

    workers: int
    mib: int
    chunk_kib: int
    window_kib: int
    rounds: int
    warmup: int
    repeats: int
    congestion: str

    @property
    def gigabytes(self) -> float:
        """What the server receives in one measurement."""
        return self.workers * self.rounds * self.mib * (1 << 20) / 1e9


@dataclass(frozen=True)
class Measurement:
    """Of one side in one turn; ``seconds`` is wall time, with the clients' checks of the sums."""

    cpu_per_gb: float
    seconds: float


@dataclass(frozen=True)
class Side:
    """A running server and its workers; ``cpu_seconds`` are the server's so far."""

    case: Case
    cpu_seconds: Callable[[], float]
    workers: list[subprocess.Popen[str]]

    def expect(self, word: str) -> None:
        for worker in self.workers:
            line = _read_line(worker)
            if line != word:
                raise FleetError(f"a worker said {line!r}, expected {word!r}")

    def measure(self) -> Measurement:
        """Run the rounds of one measurement."""
        before, started = self.cpu_seconds(), time.perf_counter()
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{self.case.rounds}\n")
            worker.stdin.flush()
        self.expect("done")
        seconds = time.perf_counter() - started
        return Measurement((self.cpu_seconds() - before) / self.case.gigabytes, seconds)


def start_reference(case: Case, fleet: Fleet, program: str) -> Side:
    """``program`` of bench/reference and its workers."""
    chunk, world = str(case.chunk_kib << 10), str(case.workers)
    server = _start(fleet, [str(BUILT / program), world, chunk, case.congestion])
    port = _read_line(server)
    sizes = [str(case.mib << 20), chunk, str(case.window_kib << 10)]
    rest = [world, *sizes, str(int(program == "reducer")), case.congestion]
    load = [str(BUILT / "load"), port]
    workers = [_start(fleet, [*load, str(rank), *rest]) for rank in range(case.workers)]
    return Side(case, lambda: cpu_seconds(server.pid), workers)


def start_ours(case: Case, fleet: Fleet) -> Side:
    options = ["--credit", f"{case.window_kib}KiB", "--congestion", case.congestion]
    (address,) = fleet.start_reducers([HOST], "--memory", "1GiB", *options)
    module = [sys.executable, "-m", "bench.reducer_cpu_worker", address]
    rest = [str(case.workers), str(case.mib << 20), str(case.chunk_kib << 10)]
    workers = [_start(fleet, [*module, str(rank), *rest]) for rank in range(case.workers)]
    return Side(case, fleet.reducer_cpu_seconds, workers)


def main() -> int:
    options = vars(_parser().parse_args())
    as_json = options.pop("json")
    case = Case(**options)
    try:
        measured = _measure(case, as_json)
    except (LabError, FleetError) as error:
        sys.exit(f"reducer_cpu: {error}")
    _print_table(case, measured)
    return 0


def _measure(case: Case, as_json: bool) -> dict[str, list[Measurement]]:
    subprocess.run(["make", "-s", "-C", str(ROOT / "bench" / "reference")], check=True)
    measured: dict[str, list[Measurement]] = {name: [] for name in SIDES}
    with Lab({HOST: Nic()}, case.congestion) as lab, Fleet(OneHost(lab, HOST)) as fleet:
        sides = {
            "echo": start_reference(case, fleet, "echo"),
            "C reducer": start_reference(case, fleet, "reducer"),
            "ours": start_ours(case, fleet),
        }
        for side in sides.values():
            side.expect("ready")
        for turn in range(case.warmup + case.repeats):
            # Who goes first changes, so that nobody always follows the same neighbour.
            for name in SIDES if turn % 2 == 0 else SIDES[::-1]:
                one = sides[name].measure()
                if turn >= case.warmup:
                    measured[name].append(one)
                if as_json:
                    line = {"what": name, "warmup": turn < case.warmup, **asdict(one)}
                    print(json.dumps(line | asdict(case)), flush=True)
    return measured


def _print_table(case: Case, measured: dict[str, list[Measurement]]) -> None:
    print(
        f"\nCPU of the reducer, float32, {case.workers} workers, chunks of {case.chunk_kib} KiB, "
        f"rounds of {case.mib} MiB, window {case.window_kib} KiB, loopback, {case.congestion} on "
        f"both sides;\n{case.repeats} measurements of {case.gigabytes:.2f} GB each, every sum "
        f"checked\n"
    )
    print(
        f"{'':<10} {'CPU s/GB':>9} {'min':>7} {'max':>7} {'us/chunk':>9} {'x echo':>7} {'x C':>7}"
    )
    medians = {
        name: statistics.median(one.cpu_per_gb for one in ones) for name, ones in measured.items()
    }
    for name, ones in measured.items():
        costs = [one.cpu_per_gb for one in ones]
        middle = medians[name]
        per_chunk = middle * (case.chunk_kib << 10) / 1e3
        print(
            f"{name:<10} {middle:>9.4f} {min(costs):>7.4f} {max(costs):>7.4f} {per_chunk:>9.1f} "
            f"{middle / medians['echo']:>7.2f} {middle / medians['C reducer']:>7.2f}"
        )
    if (case.workers, case.chunk_kib) != (4, 1024):
        return
    print()
    for name, peer, limit in LIMITS:
        ratio = medians[name] / medians[peer]
        word = "within" if ratio <= limit else "OVER"
        print(f"{name} at {ratio:.2f} x {peer}: {word} the limit of {limit}")


def _start(fleet: Fleet, command: list[str]) -> subprocess.Popen[str]:
    return fleet.start(HOST, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise FleetError(f"{process.args!r} has ended: its error is above")
    return line.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="CPU of the reducer for each GB, beside C.")
    for name, default in (
        ("workers", 4),
        ("mib", 64),
        ("chunk-kib", 1024),
        ("window-kib", 2048),
        ("rounds", 4),
        ("warmup", 1),
        ("repeats", 7),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--json", action="store_true", help="one line for each measurement, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
