"""Push and pull of a whole table over loopback: our parameter server beside ps-lite.

All sides live for the whole run of a case and take turns. In a turn, all workers of a side push and
pull the table ``--rounds`` times, each as fast as it can. The table is compared with all pushes
after each turn. `bench/README.md` says what each side does, and how ps-lite's program is built.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench.fleet import Fleet, FleetError, ThisMachine
from bench.machine import facts, load
from bench.pairs import in_turns
from bench.ps.cluster import Case, Cluster
from bench.ps.ours import start_ours, start_with_backup
from bench.ps.ps_lite import PsLite
from bench.ps.rates import BACKUP, OURS, PS_LITE, PS_LITE_COPY, SIDES, Turn, format_table

PATIENCE = 60.0  # seconds for one push and pull


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "throughput", help="push and pull of a table over loopback, beside ps-lite"
    )
    parser.add_argument("--against", choices=[PS_LITE], help="adds this side to ours")
    parser.add_argument("--sides", choices=SIDES, nargs="+", help="exactly these sides")
    parser.add_argument(
        "--cases",
        type=_counts,
        default=[(1, 1), (2, 1), (2, 2)],
        help="workers/servers, such as 1/1,2/1",
    )
    parser.add_argument("--lanes", type=int, default=1, help="of each of our reducers")
    parser.add_argument("--mib", type=int, default=64, help="of the table")
    parser.add_argument("--key-mib", type=int, default=4, help="of a key of ps-lite")
    parser.add_argument("--momentum", type=float, default=0.9, help="of SGD, on our side")
    parser.add_argument("--rounds", type=int, default=5, help="pushes and pulls in a turn")
    parser.add_argument("--warmup", type=int, default=1, help="turns of each side")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side")
    parser.add_argument("--json", type=Path, help="file that the results are appended to")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    sides = options.sides or [OURS, *filter(None, [options.against])]
    context = facts()
    print(f"push and pull of {options.mib} MiB; {context['cpu']}, load {context['load'][0]}")
    _keep(options.json, {"what": "context", "command": command(), **context})
    turns = []
    try:
        for workers, servers in options.cases:
            size, key_size = options.mib << 20, options.key_mib << 20
            case = Case(workers, servers, size, key_size, options.momentum, options.lanes)
            for turn in measure(case, sides, options.rounds, options.warmup, options.repeats):
                _keep(options.json, {"what": "throughput", **asdict(case), **asdict(turn)})
                turns.append(turn)
    except FleetError as error:
        sys.exit(f"bench.ps throughput: {error}")
    _keep(options.json, {"what": "end", "load": load()})
    print("\n".join([*format_table(turns), f"load {load()[0]} afterwards"]))


def measure(
    case: Case, sides: Sequence[str], rounds: int, warmup: int, repeats: int
) -> Iterator[Turn]:
    """``repeats`` turns of each side, after ``warmup`` that are not kept."""
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(ThisMachine()))
        clusters = {side: _start(fleet, side, case, stack) for side in sides}
        for number, side, cluster in in_turns(clusters, warmup + repeats):
            turn = _take_turn(case, side, cluster, rounds)
            cluster.check(PATIENCE)
            if number >= warmup:
                yield turn


def _start(fleet: Fleet, side: str, case: Case, stack: ExitStack) -> Cluster:
    if side == OURS:
        return start_ours(fleet, case)
    if side == BACKUP:
        return stack.enter_context(start_with_backup(fleet, case))[0]
    return PsLite(fleet, case, copy=side == PS_LITE_COPY).cluster


def _take_turn(case: Case, side: str, cluster: Cluster, rounds: int) -> Turn:
    server, worker = cluster.server_cpu_seconds(), cluster.worker_cpu_seconds()
    lines = cluster.run(rounds, PATIENCE)
    gigabytes = sum(line["bytes"] for of_worker in lines for line in of_worker) / 1e9
    return Turn(
        case=str(case),
        side=side,
        times=[[line["seconds"] for line in of_worker] for of_worker in lines],
        moved=lines[0][0]["bytes"],
        server_cpu=(cluster.server_cpu_seconds() - server) / gigabytes,
        worker_cpu=(cluster.worker_cpu_seconds() - worker) / gigabytes,
    )


def _counts(text: str) -> list[tuple[int, int]]:
    cases = []
    for word in text.split(","):
        workers, _, servers = word.partition("/")
        if not (workers.isdigit() and servers.isdigit() and int(workers) and int(servers)):
            raise argparse.ArgumentTypeError(f"{word!r}: expected workers/servers, such as 2/1")
        cases.append((int(workers), int(servers)))
    return cases


def command() -> str:
    """The command line of this run, for the results."""
    return shlex.join(["python", "-m", "bench.ps", *sys.argv[1:]])


def _keep(path: Path | None, line: dict[str, object]) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
