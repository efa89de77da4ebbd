"""CPU time per GB: of `reducer serve`, of a minimal reducer in C, and of an echo in C.

    python -m bench.reducer_cpu                      # 64 MiB rounds, 4 workers, 1 MiB chunks
    python -m bench.reducer_cpu --chunk-kib 64 --json
    python -m bench.reducer_cpu --rate 1gbit --chunk-kib 64 --window-kib 512

The figures are CPU seconds (user and system, all threads and processes of the server) per GB of
contributions received; for each GB received, the server sends a GB. All servers live for the whole
run, in a namespace with one congestion control, and take turns. Every sum is checked.

The traffic uses loopback. With ``--rate`` every worker and the server have a NIC of that rate, and
the result is the time of a round. This shows the cost of rank order, exactly once, CRC and
retention when the network is the limit.

``ours`` is `reducer serve --lanes 1` with every check on and the Python client; the C programs of
bench/reference check nothing. Needs root (see `bench.netlab`), make and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass

from bench.fleet import ROOT, Fleet, FleetError, OneHost, Place, cpu_seconds
from bench.netlab import Lab, LabError, Nic, allow_congestion

BUILT = ROOT / "build" / "reference"
SERVER = "reducer"  # the host of all servers, and of the workers if there is no rate
SIDES = ("echo", "C reducer", "ours")
# Limits for the CPU cost of a side relative to another, with 4 workers and chunks of 1 MiB.
LIMITS = (("C reducer", "echo", 1.15), ("ours", "C reducer", 1.25))
# The limit for the time of a round with limited NICs, relative to the C reducer's.
TIME_LIMIT = 1.03


@dataclass(frozen=True)
class Case:
    """The parameters of a run. One measurement has ``rounds`` rounds of ``mib`` MiB."""

    workers: int
    mib: int
    chunk_kib: int
    window_kib: int
    rounds: int
    warmup: int
    repeats: int
    congestion: str
    rate: str | None

    @property
    def worker_hosts(self) -> list[str]:
        return [f"worker{rank}" if self.rate else SERVER for rank in range(self.workers)]

    @property
    def gigabytes(self) -> float:
        """GB that the server receives in one measurement."""
        return self.workers * self.rounds * self.mib * (1 << 20) / 1e9


@dataclass(frozen=True)
class Measurement:
    """The result of one side in one turn; ``seconds`` is the slowest worker's time per round."""

    cpu_per_gb: float
    seconds: float


@dataclass(frozen=True)
class Side:
    """A running server and its workers; ``cpu_seconds`` returns the server's CPU time so far."""

    case: Case
    cpu_seconds: Callable[[], float]
    workers: list[subprocess.Popen[str]]

    def expect(self, word: str) -> list[str]:
        """Wait until every worker has printed ``word``; returns the rest of each line."""
        rests = []
        for worker in self.workers:
            line = _read_line(worker)
            if not line.startswith(word):
                raise FleetError(f"a worker said {line!r}, expected {word!r}")
            rests.append(line.removeprefix(word))
        return rests

    def measure(self) -> Measurement:
        """Run the rounds of one measurement."""
        before = self.cpu_seconds()
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{self.case.rounds}\n")
            worker.stdin.flush()
        seconds = max(map(float, self.expect("done")))
        cpu = self.cpu_seconds() - before
        return Measurement(cpu / self.case.gigabytes, seconds / self.case.rounds)


def start_reference(case: Case, fleet: Fleet, program: str) -> Side:
    """Start ``program`` of bench/reference and its workers."""
    chunk, world = str(case.chunk_kib << 10), str(case.workers)
    address = fleet.address(SERVER)
    server = _start(fleet, SERVER, [str(BUILT / program), address, world, chunk, case.congestion])
    port = _read_line(server)
    sizes = [str(case.mib << 20), chunk, str(case.window_kib << 10)]
    rest = [world, *sizes, str(int(program == "reducer")), case.congestion]
    load = [str(BUILT / "load"), address, port]
    workers = _start_workers(case, fleet, load, rest)
    return Side(case, lambda: cpu_seconds(server.pid), workers)


def start_ours(case: Case, fleet: Fleet) -> Side:
    options = ["--credit", f"{case.window_kib}KiB", "--congestion", case.congestion]
    (address,) = fleet.start_reducers([SERVER], "--memory", "1GiB", *options)
    module = [sys.executable, "-m", "bench.reducer_cpu_worker", address]
    rest = [str(case.workers), str(case.mib << 20), str(case.chunk_kib << 10)]
    workers = _start_workers(case, fleet, module, rest)
    return Side(case, fleet.reducer_cpu_seconds, workers)


def main() -> int:
    options = vars(_parser().parse_args())
    as_json = options.pop("json")
    try:
        case = Case(**options | {"congestion": allow_congestion(options["congestion"])})
        measured = _measure(case, as_json)
    except (LabError, FleetError) as error:
        sys.exit(f"reducer_cpu: {error}")
    _print_table(case, measured)
    return 0


def _measure(case: Case, as_json: bool) -> dict[str, list[Measurement]]:
    subprocess.run(["make", "-s", "-C", str(ROOT / "bench" / "reference")], check=True)
    measured: dict[str, list[Measurement]] = {name: [] for name in SIDES}
    hosts = dict.fromkeys([SERVER, *case.worker_hosts], Nic(case.rate))
    with Lab(hosts, case.congestion) as lab, Fleet(_place(case, lab)) as fleet:
        sides = {
            "echo": start_reference(case, fleet, "echo"),
            "C reducer": start_reference(case, fleet, "reducer"),
            "ours": start_ours(case, fleet),
        }
        for side in sides.values():
            side.expect("ready")
        for turn in range(case.warmup + case.repeats):
            # The order changes, so that no side always runs after the same other side.
            for name in SIDES if turn % 2 == 0 else SIDES[::-1]:
                one = sides[name].measure()
                if turn >= case.warmup:
                    measured[name].append(one)
                if as_json:
                    line = {"what": name, "warmup": turn < case.warmup, **asdict(one)}
                    print(json.dumps(line | asdict(case)), flush=True)
    return measured


def _print_table(case: Case, measured: dict[str, list[Measurement]]) -> None:
    where = f"NICs of {case.rate}" if case.rate else "loopback"
    print(
        f"\nCPU of the reducer, float32, {case.workers} workers, chunks of {case.chunk_kib} KiB, "
        f"rounds of {case.mib} MiB, window {case.window_kib} KiB, {where}, {case.congestion} on "
        f"both sides;\n{case.repeats} measurements of {case.gigabytes:.2f} GB each, every sum "
        f"checked\n"
    )
    print(
        f"{'':<10} {'CPU s/GB':>9} {'min':>7} {'max':>7} {'us/chunk':>9} {'x echo':>7} {'x C':>7} "
        f"{'ms/round':>9} {'min':>7} {'max':>7} {'x C':>7}"
    )
    medians = {name: _median(ones) for name, ones in measured.items()}
    peer = medians["C reducer"]
    for name, ones in measured.items():
        cost, seconds = astuple(medians[name])
        costs, times = [one.cpu_per_gb for one in ones], [one.seconds * 1e3 for one in ones]
        print(
            f"{name:<10} {cost:>9.4f} {min(costs):>7.4f} {max(costs):>7.4f} "
            f"{cost * (case.chunk_kib << 10) / 1e3:>9.1f} "
            f"{cost / medians['echo'].cpu_per_gb:>7.2f} {cost / peer.cpu_per_gb:>7.2f} "
            f"{seconds * 1e3:>9.1f} {min(times):>7.1f} {max(times):>7.1f} "
            f"{seconds / peer.seconds:>7.3f}"
        )
    print()
    if case.rate:
        _print_verdict("ours", medians["ours"].seconds / peer.seconds, "C reducer", TIME_LIMIT)
    elif (case.workers, case.chunk_kib) == (4, 1024):
        for name, other, limit in LIMITS:
            ratio = medians[name].cpu_per_gb / medians[other].cpu_per_gb
            _print_verdict(name, ratio, other, limit)


def _median(ones: list[Measurement]) -> Measurement:
    return Measurement(
        statistics.median(one.cpu_per_gb for one in ones),
        statistics.median(one.seconds for one in ones),
    )


def _print_verdict(name: str, ratio: float, peer: str, limit: float) -> None:
    word = "within" if ratio <= limit else "OVER"
    print(f"{name} at {ratio:.3f} x {peer}: {word} the limit of {limit}")


def _place(case: Case, lab: Lab) -> Place:
    return lab if case.rate else OneHost(lab, SERVER)


def _start_workers(
    case: Case, fleet: Fleet, program: list[str], rest: list[str]
) -> list[subprocess.Popen[str]]:
    return [
        _start(fleet, host, [*program, str(rank), *rest])
        for rank, host in enumerate(case.worker_hosts)
    ]


def _start(fleet: Fleet, host: str, command: list[str]) -> subprocess.Popen[str]:
    return fleet.start(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise FleetError(f"{process.args!r} has ended: its error is above")
    return line.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="CPU time of the reducer per GB, compared with C programs."
    )
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
    parser.add_argument("--rate", help="of every NIC, in tc's words (1gbit); loopback without it")
    parser.add_argument(
        "--json", action="store_true", help="also print one line for each measurement"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
