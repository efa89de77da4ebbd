"""Kills of reducers when a named frame passes, while two workers push to tables with backups."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import reducer_client
from reducer_client.registry.daemon import DaemonRegistry
from reducer_client.tables import Receipt, Table
from tests.support.cluster import Daemon
from tests.support.harms import When, kill
from tests.support.proxy import Proxies
from tests.support.reducers import Reducers
from tests.support.table_frames import FrameTrigger
from tests.support.table_places import Places
from tests.support.tables import LEDGER, flat, integers, ledger, step_ledger, zeros
from tests.support.wait import wait_until

WORKERS = 2
REDUCERS = 4  # so that there is a spare while a killed one starts again
PUSHES = 3  # of each worker for each kill; in mode sync, steps
SECONDS = 20.0
SEEDS = 10_000  # of each worker
Mode = Literal["async", "sync"]
Role = Literal["primary", "backup"]
ROLES: tuple[Role, ...] = ("primary", "backup")
WHENS: tuple[When, ...] = ("before", "after")


class Point(NamedTuple):
    """A frame of the table of this mode, and who is killed when it passes.

    The frame is one of the partition of ``shard``; shard 0 is in the partition of the owner.
    """

    mode: Mode
    frame: str
    shard: int
    role: Role
    when: When

    def __str__(self) -> str:
        return (
            f"mode {self.mode}, {self.role} of shard {self.shard} killed {self.when} a frame "
            f"{self.frame!r} is forwarded"
        )


class Pushes:
    """A table of one mode, by worker, and the receipts of all its pushes."""

    def __init__(self, mode: Mode, tables: list[Table], pool: ThreadPoolExecutor) -> None:
        self.tables = tables
        self._mode = mode
        self._pool = pool
        self._receipts: list[list[Receipt]] = [[] for _ in tables]

    def push(self) -> None:
        """All workers push, and wait for their receipts."""
        push = self._push_at_once
        if self._mode == "sync":
            push = partial(self._push_in_steps, self.tables[0].step + PUSHES)
        list(self._pool.map(push, range(WORKERS)))

    def _push_at_once(self, worker: int) -> None:
        receipts = self._receipts[worker]
        numbers = range(len(receipts), len(receipts) + PUSHES)
        pushes = [self.tables[worker].push(integers(_seed(worker, each))) for each in numbers]
        receipts += [push.wait() for push in pushes]

    def _push_in_steps(self, last: int, worker: int) -> None:
        """Push until a step is over. A worker that is cut off is left out of steps, and told so."""
        table, receipts = self.tables[worker], self._receipts[worker]
        while table.step < last:
            push = table.push(integers(_seed(worker, len(receipts))))
            table.pull()
            receipts.append(push.wait())

    def check(self) -> None:
        """Compare the parameters with the ledger of the receipts: nothing is lost or doubled."""
        if self._mode == "sync":
            expected = step_ledger(self._receipts, _seed)
        else:
            outcomes = {receipt.outcome for each in self._receipts for receipt in each}
            assert outcomes <= {"applied"}
            numbers = [(w, n) for w, each in enumerate(self._receipts) for n in range(len(each))]
            expected = ledger(zeros(), (integers(_seed(*each)) for each in numbers))
        for table in self.tables:
            wrong = int((flat(table.pull()) != expected).sum())
            assert not wrong, f"{wrong} elements of the table of mode {self._mode} are wrong"


def _seed(worker: int, number: int) -> int:
    return SEEDS * worker + number


class Kills:
    """``stack`` ends all processes. ``at`` kills at a point, and checks both tables."""

    def __init__(self, stack: ExitStack, folder: Path, job: str) -> None:
        keeper = stack.enter_context(Daemon("--registry", str(folder / "registry"))).address
        self._reducers = stack.enter_context(Reducers(REDUCERS))
        self._trigger = FrameTrigger()
        proxies = Proxies(self._reducers.addresses, self._trigger, framed=True)
        addresses = stack.enter_context(proxies).addresses
        registry = DaemonRegistry(keeper, job)
        stack.callback(registry.close)
        self._places = Places(registry, job, addresses)
        self._starting = stack.enter_context(ThreadPoolExecutor(1))
        self._start: Future[None] | None = None
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))
        servers = [
            stack.enter_context(
                reducer_client.parameter_server(
                    addresses, job=job, worker=worker, workers=WORKERS, replicas=1,
                    registry=keeper, timeout=SECONDS,
                )
            )
            for worker in range(WORKERS)
        ]  # fmt: skip
        self._pushes: dict[Mode, Pushes] = {}
        for mode in ("async", "sync"):
            tables = [ps.table(mode, zeros(), optimizer=LEDGER, mode=mode) for ps in servers]
            self._pushes[mode] = Pushes(mode, tables, pool)

    def at(self, point: Point) -> None:
        pushes = self._pushes[point.mode]
        until = time.monotonic() + SECONDS
        while not (victim := self._kill_while_pushing(point, pushes)):
            assert time.monotonic() < until, "no such frame came"
        for each in self._pushes.values():
            each.check()
        self._start = self._starting.submit(self._restart, victim[0])

    def _kill_while_pushing(self, point: Point, pushes: Pushes) -> list[int]:
        """The victim; none if the frame did not come while every partition had a full backup."""
        if self._start is not None:
            self._start.result(SECONDS)
        wait_until(self._places.have_backups, SECONDS, "full backups")
        partition = pushes.tables[0].layout.partition(point.shard)
        entry = self._places.entries[partition]
        assert entry.backup is not None
        slots = {"primary": entry.primary.slot, "backup": entry.backup.slot}
        victim = slots[point.role]
        ends = slots.values() if point.frame.startswith("LOG") else [slots["primary"]]

        def may_kill() -> bool:
            # On a busy machine a reducer may seem lost that is not: no second one may die then.
            return self._places.entries[partition] == entry and self._places.have_backups()

        harm = kill(partial(self._reducers.strike, victim), point.when, victim in ends)
        self._trigger.arm(partition, point.frame, harm, may_kill)
        pushes.push()
        if self._trigger.disarm():
            return []
        assert self._trigger.fired.wait(SECONDS)
        self._reducers.kill(victim)
        return [victim]

    def _restart(self, victim: int) -> None:
        self._reducers.start(victim)
        self._places.started(victim)
