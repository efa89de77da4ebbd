"""What SIGKILL of a server costs the workers that push to it: ours, beside ps-lite.

On our side the reducers keep one backup of the table. The registry is at one more reducer, which is
not killed. The killed reducer is started again at its address when the workers have their receipts:
its start would take one of this machine's cores from them. ``--pause`` must be so long that every
part of the table has a backup again: a kill before that loses the part.

On ps-lite's side each kill has a job of its own. ps-lite has no backups, so the question is only
whether the workers end, go on, or hang; ``--limit`` bounds the wait. `ps-lite+restart` starts a new
server in place of the killed one, with ps-lite's heartbeats on. (With PS_RESEND, ps-lite sends
again what has no answer; its workers then abort when they have sent a message ten times.)
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench.fleet import Fleet, FleetError, ThisMachine
from bench.machine import facts
from bench.ps.cluster import Case, Cluster, SilenceError, Worker
from bench.ps.kills import Kill, Silence, format_kills
from bench.ps.ours import start_with_backup
from bench.ps.ps_lite import PsLite

FOREVER = 10**9
PATIENCE = 60.0  # seconds for one push and pull of ours
PS_LITE = "ps-lite"
# ps-lite's variables, in seconds.
PEERS: dict[str, dict[str, str]] = {
    PS_LITE: {},
    "ps-lite+restart": {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "2"},
}
DEAD_SECONDS = 4.0  # after which ps-lite's scheduler gives a new server the place of a dead one


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "failover", help="time from the kill of a server to the next receipt, beside ps-lite"
    )
    parser.add_argument("--against", choices=[PS_LITE], help="kills servers of ps-lite, too")
    parser.add_argument("--without-ours", action="store_true", help="only what --against names")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=3, help="reducers that hold the table")
    parser.add_argument("--mib", type=int, default=64, help="of the table")
    parser.add_argument("--kills", type=int, default=40, help="of our reducers")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between kills")
    parser.add_argument("--peer-kills", type=int, default=3, help="of servers of ps-lite")
    parser.add_argument("--limit", type=float, default=15.0, help="seconds to wait for ps-lite")
    parser.add_argument("--json", type=Path, help="file that the results are appended to")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    case = Case(options.workers, options.servers, options.mib << 20, 4 << 20, 0.9)
    context = facts()
    lines: list[dict[str, object]] = [{"what": "context", **context}]
    print(f"table of {options.mib} MiB; {context['cpu']}, load {context['load'][0]}")
    try:
        if not options.without_ours:
            kills = list(kill_ours(case, options.kills, options.pause))
            lines += [{"what": "kill", "side": "ours", **asdict(kill)} for kill in kills]
            print("\n".join(format_kills(kills)), flush=True)
        if options.against:
            for side in [side for side in PEERS for _ in range(options.peer_kills)]:
                silence = kill_ps_lite(case, side, options.limit)
                lines.append({"what": "silence", **asdict(silence)})
                print(silence, flush=True)
    except FleetError as error:
        sys.exit(f"bench.ps failover: {error}")
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def kill_ours(case: Case, kills: int, pause: float) -> Iterator[Kill]:
    """Kill reducers in the middle of pushes, and start them again."""
    rng = random.Random(1)
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(ThisMachine()))
        cluster, reducers = stack.enter_context(start_with_backup(fleet, case))
        _begin(cluster, "push")
        for _ in range(kills):
            usual = _take_lines(cluster, time.monotonic() + pause * rng.uniform(0.8, 1.2))
            reducer = rng.choice(reducers)
            at = time.monotonic()
            reducer.kill()
            nexts, fresh = _await_receipts(cluster, at)
            reducer.restart()
            yield Kill(nexts, fresh, usual)


def _begin(cluster: Cluster, order: str) -> None:
    """Start pushes without end, and wait for the first ones."""
    for worker in cluster.workers:
        worker.order(f"{order} {FOREVER}")
    for worker in cluster.workers:
        for _ in range(3):
            worker.take(PATIENCE)


def _take_lines(cluster: Cluster, until: float) -> float:
    """Returns the median seconds of a push."""
    seconds: list[float] = []
    for worker in cluster.workers:
        while (line := worker.take(PATIENCE))["at"] < until:
            seconds.append(float(line["seconds"]))
    return statistics.median(seconds)


def _await_receipts(cluster: Cluster, at: float) -> tuple[float, float]:
    """The slowest worker's times from the kill at ``at``: `Kill.next` and `Kill.fresh`."""
    nexts, begun_after = [], []
    for worker in cluster.workers:
        line = worker.take(PATIENCE)
        while line["at"] < at:
            line = worker.take(PATIENCE)
        nexts.append(line["at"] - at)
        while line["begun"] < at:
            line = worker.take(PATIENCE)
        begun_after.append(line["at"] - at)
    return max(nexts), max(begun_after)


def kill_ps_lite(case: Case, side: str, limit: float) -> Silence:
    """Kill a server in the middle of pushes, and watch a worker for ``limit`` seconds."""
    with Fleet(ThisMachine()) as fleet:
        job = PsLite(fleet, case, extra=PEERS[side], quiet=True)
        _begin(job.cluster, "run")
        at = time.monotonic()
        job.cluster.servers[0].kill()
        if PEERS[side]:
            time.sleep(DEAD_SECONDS)
            job.start_server()
        return _watch(job.cluster.workers[0], side, at, limit)


def _watch(worker: Worker, side: str, at: float, limit: float) -> Silence:
    last, lines = at, 0
    try:
        while (rest := at + limit - time.monotonic()) > 0:
            line = worker.take(rest)
            if line["at"] > at:
                last, lines = line["at"], lines + 1
    except SilenceError:
        pass
    except FleetError:
        return Silence(side, lines, last - at, time.monotonic() - at, worker.process.returncode)
    return Silence(side, lines, last - at, limit, None)
