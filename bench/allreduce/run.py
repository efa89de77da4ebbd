"""One run: starts hosts, daemons and workers, then runs all turns of every case; yields lines."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import machine
from bench.allreduce import mpi
from bench.allreduce.cases import Case
from bench.allreduce.contenders import ELASTIC, MPI, OVER_REDUCERS, can_reduce
from bench.allreduce.crew import Crew
from bench.allreduce.options import Options
from bench.allreduce.site import Site, open_site
from bench.fleet import Fleet

Line = dict[str, Any]
_START_SECONDS = 120.0


def measure(options: Options) -> Iterator[Line]:
    """Yield the lines of a run as they come: a context, all measurements, an end."""
    run = f"{time.time_ns() // 1_000_000:x}"
    facts = machine.facts()
    command = shlex.join(["python", *sys.orig_argv[1:]])
    yield {"what": "context", "run": run, "time": _now(), "command": command, **facts}
    with ExitStack() as stack:
        site = stack.enter_context(open_site(options))
        fleet = stack.enter_context(Fleet(site.place))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        crew = stack.enter_context(Crew(options.workers, folder / "crew"))
        credit = ["--credit", options.credit] if options.credit else []
        # The first keeps the registry, which a contender needs.
        registry = ["--registry", str(folder / "registry")] if ELASTIC in options.peers else []
        first, others = site.reducers[:1], site.reducers[1:]
        addresses = fleet.start_reducers(first, *credit, *registry, lanes=options.lanes)
        addresses += fleet.start_reducers(others, *credit, lanes=options.lanes)
        _start_workers(options, site, fleet, crew)
        words = crew.meet(_START_SECONDS, fleet.check)
        crew.order("join", **_setup(options, site, addresses, folder))
        common = {"run": run, **_topology(options, site, words), "commit": facts["commit"]}
        for case in options.cases:
            for line in _measure_case(options, case, crew, fleet):
                yield {"what": "all-reduce", **common, **line}
        crew.order("leave")
    yield {"what": "end", "run": run, "time": _now(), "load": machine.load()}


def _measure_case(options: Options, case: Case, crew: Crew, fleet: Fleet) -> Iterator[Line]:
    crew.order("take", size=case.size, type=case.type)
    names = [name for name in options.contenders if can_reduce(name, case)]
    for turn in range(-options.warmup, options.repeats):
        # The order changes, so that no contender always finds the same state of the machine.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            line = _take_turn(case, name, crew, fleet)
            if turn >= 0:
                yield {"turn": turn, **line}


def _take_turn(case: Case, contender: str, crew: Crew, fleet: Fleet) -> Line:
    crew.order("prepare", contender=contender)
    reducers, all_cores = fleet.reducer_cpu_seconds(), machine.cpu_time()
    answers = crew.order("go")
    busy, total = machine.cpu_time().since(all_cores)
    used = fleet.reducer_cpu_seconds() - reducers
    crew.order("check", contender=contender)
    ranks = zip(*(answer["seconds"] for answer in answers), strict=True)
    return {
        "contender": contender,
        "bytes": case.size,
        "dtype": case.dtype.name,
        "wire_dtype": case.wire_dtype,
        "seconds": [round(max(by_rank), 7) for by_rank in ranks],
        "reducer_cpu": round(used, 6) if contender in OVER_REDUCERS else 0.0,
        "worker_cpu": round(sum(answer["cpu"] for answer in answers), 6),
        "nic_sent": sum(answer["sent"] for answer in answers) // len(answers),
        "cpu_busy": round(busy, 2),
        "cpu_total": round(total, 2),
    }


def _setup(options: Options, site: Site, addresses: list[str], folder: Path) -> Line:
    """The data that every worker needs to join the contenders."""
    connect: dict[str, Any] = {}
    if options.chunk_table:
        connect["chunk_table"] = options.chunk_table
    if site.weights:
        connect["weights"] = site.weights
    if options.transport:
        connect["transport"] = options.transport
    return {
        "workers": options.workers,
        "contenders": options.contenders,
        "interface": site.interface,
        "addresses": addresses,
        "connect": connect,
        "piece": options.piece,
        "gloo_store": str(folder / "gloo"),
        "plugin_store": str(folder / "plugin"),
    }


def _topology(options: Options, site: Site, words: list[Line]) -> Line:
    """The fields that all measurements of the run have in common."""
    rate, reducer_rate = (None, None) if options.loopback else options.rates
    controls = sorted({word["congestion"] for word in words})
    return {
        "workers": options.workers,
        "reducers": options.reducers,
        "hosted": options.hosted,
        "lanes": options.lanes,
        "rate": rate,
        "reducer_rate": reducer_rate,
        "congestion": ",".join(controls),
        "transport": options.transport or "default",
        "chunk_table": _format_table(options) or "default",
        "credit": options.credit or "default",
        "piece": options.piece,
    }


def _start_workers(options: Options, site: Site, fleet: Fleet, crew: Crew) -> None:
    worker = [sys.executable, "-m", "bench.allreduce.worker", "--coordinator", str(crew.path)]
    commands = [[*worker, "--rank", str(rank)] for rank in range(options.workers)]
    env = {"GLOO_SOCKET_IFNAME": site.interface}
    if MPI in options.peers:
        mpi.start(fleet, site.place, site.workers, commands, site.interface, env)
        return
    for host, command in zip(site.workers, commands, strict=True):
        fleet.start(host, command, env)


def _format_table(options: Options) -> str:
    return ",".join(f"{least}:{chunk}" for least, chunk in options.chunk_table)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
