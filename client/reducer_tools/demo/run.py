"""Runs the demo: starts hosts, reducers and workers, shows progress and prints the report."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from reducer import keyfile
from reducer.units import format_count
from reducer_client.hosted.failures import NotStartedError
from reducer_tools.children import WorkerError, collect, preload, start_workers
from reducer_tools.demo import report
from reducer_tools.demo.case import Case
from reducer_tools.demo.display import Audience, Display
from reducer_tools.demo.messages import Job
from reducer_tools.demo.place import LimitedNics, Loopback, Place, serve
from reducer_tools.demo.summary import Run, find_faults, summarize
from reducer_tools.netlab import LabError, Nic, enter


class DemoError(RuntimeError):
    """A host, a reducer or a worker failed. The text names it and the cause."""


def run(case: Case, out: Path) -> int:
    """Train over the reducers and over gloo in turns; print a report, and draw it into ``out``.

    Returns:
        The exit code: 0 if all ranks hold the same parameters, bit for bit, and the runs have about
        the same loss.

    Raises:
        DemoError: a host, a reducer or a worker failed.
    """
    display = Display(sys.stdout)
    display.say(f"{report.introduce(case)}\n")
    out.mkdir(parents=True, exist_ok=True)
    preload("reducer_tools.demo.worker")  # imports torch while hosts and reducers start
    try:
        runs, busy = _train(case, out, display)
    except (LabError, NotStartedError, WorkerError) as error:
        raise DemoError(str(error)) from error
    _show(case, runs, out, display)
    faults = find_faults(runs)
    for fault in faults:
        display.say(f"FAILED: {fault}")
    if not faults:
        display.say(report.explain(case, runs, busy))
    return 1 if faults else 0


def _train(case: Case, out: Path, display: Display) -> tuple[dict[str, Run], float]:
    """Both runs, and the busy share of the cores."""
    worker_hosts, reducer_hosts = case.hosts
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".run-", dir=out.resolve()))
        place = _open_place(case, display, stack)
        key_file = f"{folder}/key"
        keyfile.make(key_file)
        with display.task(format_count(case.reducers, "reducer")):
            addresses = stack.enter_context(serve(place, reducer_hosts, key_file))
        job = Job(case.workers, addresses, folder, key_file, place.interface, case.steps)
        arguments = [(job, n, place.namespace(host)) for n, host in enumerate(worker_hosts)]
        audience = stack.enter_context(Audience(display, case.workers, case.steps))
        started = stack.enter_context(start_workers(_work, arguments, preloaded=True))
        results = collect(started, audience)
    return summarize(results), audience.busy


def _open_place(case: Case, display: Display, stack: ExitStack) -> Place:
    if case.obstacle:
        return Loopback()
    hosts = [host for side in case.hosts for host in side]
    with display.task(f"{len(hosts)} hosts with NICs of {case.rate_in_words}"):
        return stack.enter_context(LimitedNics(dict.fromkeys(hosts, Nic(case.rate))))


def _work(connection: Connection, job: Job, rank: int, namespace: str) -> None:
    if namespace:
        enter(namespace)
    from reducer_tools.demo.worker import main  # imports torch, which only workers need

    main(job, rank, connection)


def _show(case: Case, runs: dict[str, Run], out: Path, display: Display) -> None:
    path = out / "demo.png"
    with display.task(f"picture {path}"):
        from reducer_tools.demo import picture  # imports matplotlib

        picture.draw(case, runs, path)
    display.say(f"\n{report.format_table(case, runs)}\n")
