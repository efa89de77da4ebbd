"""The state between ``init`` and ``shutdown``: membership, process sets and timeline."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

import reducer_client
from reducer_client.config import find_value
from reducer_client.errors import ReducerError
from reducer_client.group import Group
from reducer_client.horovod import config
from reducer_client.horovod.controller import Controller
from reducer_client.horovod.errors import HorovodInternalError, from_reducer_error
from reducer_client.horovod.gathering import AnyGroup
from reducer_client.horovod.handles import OperationHandle
from reducer_client.horovod.rendezvous import LOSSES, Rendezvous
from reducer_client.horovod.requests import Kind, Request
from reducer_client.horovod.submissions import Submission
from reducer_client.horovod.timeline import Timeline
from reducer_client.horovod.topology import Topology, find_topology
from reducer_client.interrupts import EndOnInterrupt
from reducer_client.joining import join_beside
from reducer_client.reports import logger
from reducer_client.single_rank import SingleRankGroup

_inits = itertools.count()


class ProcessSetControllers:
    """The controllers of this rank's process sets, by number. The global set has number 0."""

    def __init__(self, everyone: Controller, join: Callable[[str, Sequence[int]], Controller]):
        self._join = join
        self._next = 1
        self._ranks: dict[int, tuple[int, ...]] = {0: everyone.ranks}
        self._controllers: dict[int, Controller] = {0: everyone}

    def _own_rank(self) -> int:
        everyone = self._controllers[0]
        return everyone.ranks[everyone.group.rank]

    def controller(self, number: int | None) -> Controller:
        """The controller of a process set.

        Raises HorovodInternalError if the set is not usable or does not include this rank.
        """
        if number is None or number not in self._ranks:
            raise HorovodInternalError(
                "the process set is not usable, because it was not added or was removed: add it "
                "with init(process_sets=[...]) or add_process_set()",
                reason="usage",
            )
        if number not in self._controllers:
            raise HorovodInternalError(
                f"process set {number} has the ranks {', '.join(map(str, self._ranks[number]))}, "
                f"but rank {self._own_rank()} made a call of the set: make the call only where "
                "process_set.included() is true",
                reason="usage",
            )
        return self._controllers[number]

    def add(self, ranks: Sequence[int]) -> int:
        """Add a process set of these ranks and return its number (see ``add_process_set``)."""
        members = tuple(ranks)
        everyone = self._controllers[0]
        if not members or not set(members) <= set(everyone.ranks):
            raise ValueError(
                f"process set of ranks {list(members)}: expected at least one rank, from 0 to "
                f"{len(everyone.ranks) - 1}"
            )
        if members in self._ranks.values():
            same = next(n for n, ranks in self._ranks.items() if ranks == members)
            raise ValueError(
                f"process set of ranks {list(members)}: expected ranks that no other set has, got "
                f"the ranks of process set {same}: use process set {same}"
            )
        number = self._next
        meet(everyone, f"add_process_set.{number}", members)
        self._next += 1  # on all ranks, or on none if a rank has joined
        if self._own_rank() in members:
            try:
                self._controllers[number] = self._join(f"set{number}", members)
            except ReducerError as error:
                raise from_reducer_error(error) from error
        meet(everyone, f"added_process_set.{number}", members)
        self._ranks[number] = members
        return number

    def remove(self, number: int) -> bool:
        """Remove a process set (see ``remove_process_set``)."""
        if number not in self._ranks:
            return False
        meet(self._controllers[0], f"remove_process_set.{number}", (number,))
        del self._ranks[number]
        controller = self._controllers.pop(number, None)
        if controller is not None:
            controller.close()
        return True

    def end(self, error: BaseException) -> None:
        """See ``Controller.end``; for every set."""
        for controller in list(self._controllers.values()):
            controller.end(error)

    def close(self) -> None:
        for number in sorted(self._controllers, reverse=True):
            self._controllers.pop(number).close()


@dataclass
class Context:
    """The state of this process between ``init`` and ``shutdown``."""

    rank: int
    size: int
    topology: Topology
    settings: config.HorovodSettings
    timeline: Timeline
    sets: ProcessSetControllers
    # The number of distributed optimizers made so far, by process set.
    optimizers: Counter[int | None] = field(default_factory=Counter)
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.end_on_interrupt = EndOnInterrupt(self.sets.end)

    def close(self) -> None:
        self.sets.close()
        self.timeline.stop()


_lock = threading.RLock()
_current: Context | None = None
# Of a job whose workers come and go; it outlives the contexts.
_rendezvous: Rendezvous | None = None


def current() -> Context:
    """The state of this process.

    Raises HorovodInternalError before ``init``, after ``shutdown`` and in forked children.
    """
    found = known()
    if found.pid != os.getpid():
        raise HorovodInternalError(
            "Horovod was initialized in the parent of this forked process", reason="forked"
        )
    return found


def known() -> Context:
    """The state of this process or of the parent that it was forked from.

    For functions that involve no other rank. Raises HorovodInternalError before ``init``.
    """
    found = _current
    if found is None:
        raise HorovodInternalError("Horovod is not initialized: call init() first", reason="usage")
    return found


def is_known() -> bool:
    """Whether ``init`` was called in this process or in the parent that it was forked from."""
    return _current is not None


def is_open() -> bool:
    """Whether ``init`` was called in this process itself."""
    return _current is not None and _current.pid == os.getpid()


def open_context() -> Context | None:
    """Join the job. Returns None if this process has joined already."""
    global _current
    with _lock:
        if is_open():
            return None
        _current = _join_job()
        return _current


def close_context() -> None:
    """Leave the run, if this process has joined one. It stays a worker of a job that is elastic."""
    global _current
    with _lock:
        found, _current = _current, None
        if found is not None and found.pid == os.getpid():
            found.close()


def find_rendezvous() -> Rendezvous | None:
    """The rendezvous of this process; None in a job with a fixed set of workers."""
    found = _rendezvous
    return found if found is not None and found.belongs_here else None


def leave_job() -> None:
    """Leave a job whose workers come and go: the others do not wait for this process any more."""
    global _rendezvous
    with _lock:
        found, _rendezvous = find_rendezvous(), None
    if found is not None:
        found.leave()


def meet(controller: Controller, name: str, numbers: Sequence[int]) -> None:
    """Return when every rank of the set has called this function with the same numbers."""
    announce(controller, Request(name, Kind.BARRIER, numbers=tuple(numbers))).wait()


def announce(controller: Controller, request: Request) -> OperationHandle:
    """Submit a request without data; the caller waits for the returned handle."""
    handle = controller.handle(request.name)
    controller.submit([Submission(request, handle, np.empty(0, np.uint8))])
    return handle


def _join_job() -> Context:
    settings = config.resolve()
    if config.is_elastic():
        return _join_next_run(settings)
    membership = config.resolve_membership()
    return _enter(_connect(membership, settings), settings, membership.local_rank)


def _join_next_run(settings: config.HorovodSettings) -> Context:
    """Meet the other workers. Workers that are lost meanwhile are left out."""
    global _rendezvous
    try:
        found = _rendezvous = find_rendezvous() or Rendezvous(settings.elastic_timeout)
        while True:
            try:
                return _enter(found.meet(), settings, None)
            except ReducerError as error:
                if error.reason not in LOSSES:
                    raise
                logger.info("joining once more: %s", error)
    except BaseException:
        leave_job()
        raise


def _enter(group: AnyGroup, settings: config.HorovodSettings, local_rank: int | None) -> Context:
    """The state of this process in the run of the group. ``local_rank`` is the launcher's."""
    timeline = Timeline()
    try:
        settings = _agreed(group, settings)
        topology = find_topology(group, local_rank)
        if group.rank == 0 and settings.timeline:
            timeline.start(settings.timeline, settings.mark_cycles)
    except BaseException:
        group.abort()
        raise

    def join_set(name: str, ranks: Sequence[int]) -> Controller:
        return Controller(_connect_set(group, name, ranks), ranks, settings, timeline)

    everyone = Controller(group, range(group.world_size), settings, timeline)
    sets = ProcessSetControllers(everyone, join_set)
    return Context(group.rank, group.world_size, topology, settings, timeline, sets)


def _agreed(group: AnyGroup, settings: config.HorovodSettings) -> config.HorovodSettings:
    """The settings, with rank 0's values for those that must be equal on all ranks."""
    own = np.array([settings.fusion_threshold, settings.cache_capacity], np.int64)
    threshold, capacity = group.broadcast(own, 0, key="settings").wait().tolist()
    return replace(settings, fusion_threshold=threshold, cache_capacity=capacity)


def _connect(membership: config.Membership, settings: config.HorovodSettings) -> AnyGroup:
    start = next(_inits)
    if membership.size == 1 and not membership.reducers:
        return SingleRankGroup()
    # A formed run accepts no new member, so a second init joins a new run.
    run_id = f"{membership.run_id}.{start}" if membership.run_id and start else None
    return reducer_client.connect(
        rank=membership.rank,
        world_size=membership.size,
        run_id=run_id,
        connect_timeout=_patience(settings, start),
    )


def _patience(settings: config.HorovodSettings, start: int) -> float:
    """The timeout of ``init`` in seconds.

    A launcher may need a while to restart a lost rank, and a restarted rank may have to wait for
    others.
    """
    if start:
        return settings.elastic_timeout
    patience: float = find_value("connect_timeout")
    return max(settings.elastic_timeout if settings.elastic else 0.0, patience)


def _connect_set(group: AnyGroup, name: str, ranks: Sequence[int]) -> AnyGroup:
    if len(ranks) == 1:
        return SingleRankGroup()
    assert isinstance(group, Group)
    return join_beside(
        group,
        rank=list(ranks).index(group.rank),
        world_size=len(ranks),
        run_id=f"{group.run_id}#{name}",
        connect_timeout=find_value("connect_timeout"),
        step_timeout=None,
    )
