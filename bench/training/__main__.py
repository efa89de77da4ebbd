"""`python -m bench.training`: the command line of the benchmark."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import bench.training
from bench.fleet import FleetError
from bench.machine import CpuTime, cpu_time, facts
from bench.training import devices
from bench.training.case import COMPUTE, Case, parse_contender
from bench.training.model import POSITIONS, SHAPES, Bert, gradient_bytes
from bench.training.overlap import format_spans
from bench.training.progress import progress_bar
from bench.training.report import format_table
from bench.training.run import Outcome, TrainingError, run
from bench.training.trainer import attach_options
from reducer.units import parse_size
from reducer_tools.netlab import LabError, Nic, allow_congestion

_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def main() -> int:
    options = _parse_arguments()
    results = []
    with ExitStack() as stack:
        out = stack.enter_context(options.json.open("a")) if options.json else None
        for workers, rate in itertools.product(options.workers, options.rates):
            try:
                case = _make_case(options, workers, rate)
                lines = _measure(case, out, options.trace)
            except (FleetError, LabError, TrainingError) as error:
                sys.exit(f"bench.training: {error}")
            print(f"{format_table(case, lines)}\n", flush=True)
            results.append((case, lines))
    if options.trace:
        print(f"{format_spans(options.trace)}\n", flush=True)
    if options.plot:
        from bench.training.plot import draw

        draw(results, options.plot)
    return 0


def _measure(case: Case, out: IO[str] | None, trace: Path | None) -> list[dict[str, Any]]:
    where = case.rate or "loopback"
    before = cpu_time()
    with progress_bar(f"{case.size}, {case.workers} workers, {where}", case.turns) as on_turn:
        outcomes = run(case, on_turn, trace)
    lines = _as_lines(case, outcomes, _busy_share(before))
    if out is not None:
        context = {"what": "context", **facts(), **devices.facts(case.device)}
        out.writelines(f"{json.dumps(line)}\n" for line in (context, *lines))
        out.flush()
    return lines


def _busy_share(before: CpuTime) -> float:
    passed = cpu_time().since(before)
    return passed.busy / passed.total


def _as_lines(case: Case, outcomes: Sequence[Outcome], busy: float) -> list[dict[str, Any]]:
    common = {
        "what": "training",
        "case": case.as_json(),
        "busy": round(busy, 3),
        "gradient_bytes": gradient_bytes(Bert(SHAPES[case.size])),
    }
    return [{**common, **outcome.as_json()} for outcome in outcomes]


def _make_case(options: argparse.Namespace, workers: int, rate: str | None) -> Case:
    own = _CONGESTION.read_text(encoding="ascii").strip()
    return Case(
        size=options.size,
        workers=workers,
        reducers=workers if options.reducers is None else options.reducers,
        lanes=options.lanes,
        rate=rate,
        congestion=own if rate is None else allow_congestion(options.congestion),
        chunk=options.chunk,
        credit=options.credit,
        batch=options.batch,
        sequence=options.sequence,
        warmup=options.warmup,
        blocks=options.blocks,
        steps=options.steps,
        contenders=options.contenders,
        hosted=options.hosted,
        device_ms=options.device_ms,
        device=options.device,
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.training",
        description=bench.training.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--size", choices=SHAPES, default="10m")
    add("--workers", type=_counts, default=[8], metavar="N,...")
    add("--reducers", type=int, help="default: as many as workers; 0 needs --hosted")
    add("--hosted", action="store_true", help="the workers host reducers, too")
    add("--lanes", type=_count, default=1, help="of each reducer")
    add("--rates", type=_words, default=["100mbit"], metavar="RATE,...", help="of every NIC")
    add("--loopback", action="store_true", help="without lab and root: a check, not a measurement")
    add("--congestion", default="cubic", help="of all hosts of the lab")
    add(
        "--chunk",
        type=_size,
        metavar="SIZE",
        help="chunk size of all rounds; default: the client's",
    )
    add("--credit", metavar="SIZE", help="--credit of `reducer serve`; default: its own")
    add("--batch", type=_count, default=1, help="passages of a worker in a step")
    add("--sequence", type=int, default=32, help="tokens of a passage")
    add(
        "--device-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="each layer takes so much longer in forward(), and twice that in backward(), without "
        "a core, as if an accelerator computed it",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: workers may share a GPU")
    add("--warmup", type=_count, default=2, help="steps")
    add("--blocks", type=_count, default=5, help="of each contender")
    add("--steps", type=_count, default=2, help="of each block")
    add("--contenders", type=_words, default=["gloo", "reducers"], metavar="NAME,...")
    add("--priority", action="store_true", help="add the contender reducers-priority")
    add("--json", type=Path, metavar="PATH", help="append one line for each contender")
    add(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="write traces of some steps of each contender, by torch's profiler and the client, "
        "and print what overlaps; slows all steps down",
    )
    add("--plot", type=Path, metavar="PNG", help="speed-up by rate and number of workers")
    options = parser.parse_args()
    try:
        options.rates = [None] if options.loopback else _checked_rates(options.rates)
        options.contenders = _contenders(options)
        if (options.reducers or 0) < 0 or (options.reducers == 0 and not options.hosted):
            raise ValueError(
                f"--reducers {options.reducers}: expected 1 or more, or 0 and --hosted"
            )
        if not 2 <= options.sequence <= POSITIONS:
            raise ValueError(f"--sequence {options.sequence}: expected 2 to {POSITIONS} tokens")
        devices.check(options.device, options.contenders, options.device_ms)
    except ValueError as error:
        parser.error(str(error))
    return options


def _checked_rates(rates: list[str]) -> list[str]:
    for rate in rates:
        _ = Nic(rate).bits_per_second  # raises
    return rates


def _contenders(options: argparse.Namespace) -> tuple[str, ...]:
    names = [name for name in options.contenders if name != COMPUTE]
    names += ["reducers-priority"] if options.priority else []
    for name in names:
        attach_options(parse_contender(name))
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--contenders {','.join(names)}: expected some, each once")
    return (*names, COMPUTE)


def _words(text: str) -> list[str]:
    return text.split(",")


def _counts(text: str) -> list[int]:
    return [_count(word) for word in _words(text)]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
