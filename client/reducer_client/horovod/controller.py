"""One process set on this rank: one thread negotiates, another collects results.

A rank takes part in rounds of negotiation while it has pending operations, announced or not. So the
ranks in a round hear of each other's operations. A rank without pending operations only delays
ranks that need a tensor of it, and idle ranks send nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from reducer_client.arrays import Array
from reducer_client.errors import ReducerError, RoundTimeoutError
from reducer_client.horovod.announcements import RequestCache
from reducer_client.horovod.config import HorovodSettings
from reducer_client.horovod.errors import (
    DuplicateNameError,
    HorovodInternalError,
    from_reducer_error,
)
from reducer_client.horovod.exchange import KEY, Heard, exchange
from reducer_client.horovod.execution import Executor, Running
from reducer_client.horovod.gathering import AnyGroup, AnyWork
from reducer_client.horovod.handles import OperationHandle
from reducer_client.horovod.negotiation import Negotiation, Response, ResponseList
from reducer_client.horovod.requests import Kind, Request
from reducer_client.horovod.stalls import StallCheck
from reducer_client.horovod.submissions import Submission
from reducer_client.horovod.timeline import Timeline
from reducer_client.interrupts import EndOnInterrupt

T = TypeVar("T")

_DRAIN_SECONDS = 10.0
# Seconds, the longest that a work can be waited for at once.
_LONGEST_WAIT = 3600.0
# Between rounds in which no rank has anything to say, seconds.
_SHORTEST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05


class Controller:
    """Takes submissions from any thread and runs them when all ranks have announced them.

    Args:
        ranks: global ranks of the set, ascending.
    """

    def __init__(
        self,
        group: AnyGroup,
        ranks: Sequence[int],
        settings: HorovodSettings,
        timeline: Timeline,
    ) -> None:
        self.group = group
        self.ranks = tuple(ranks)
        self._end_on_interrupt = EndOnInterrupt(self.end)
        self._cycle_time = settings.cycle_time
        self._timeline = timeline
        self._cache = RequestCache(settings.cache_capacity)
        self._negotiation = Negotiation(self.ranks, settings.fusion_threshold)
        self._executor = Executor(group, timeline)
        self._stalls = StallCheck(settings)
        self._changed = threading.Condition()
        self._unnamed: Counter[Kind] = Counter()
        # How many times all ranks have joined. Between calls the number is equal on all ranks.
        self.joins = 0
        # From submission to its end: names in use, of them those not announced, and those that
        # wait for other ranks.
        self._names: dict[str, Submission] = {}
        self._queue: list[Submission] = []
        self._announced: dict[str, Submission] = {}
        self._hurried = False
        self._failure: HorovodInternalError | None = None
        self._stopping = False
        self._running: queue.SimpleQueue[Running | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._negotiate, name="horovod-negotiate", daemon=True),
            threading.Thread(target=self._collect, name="horovod-collect", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def named(self, kind: Kind, given: str | None, call: Callable[[str], T]) -> T:
        """Make a call with the name ``allreduce.NAME``, or with a number if no name is given.

        The n-th call of a kind without a name has the number n on all ranks. A call that raises
        does not count. Ranks that have joined make fewer calls, so the numbers begin again after
        each join.
        """
        kind_name = kind.name.lower()
        with self._end_on_interrupt:
            if given is not None:
                return call(f"{kind_name}.{given}")
            with self._changed:
                joins, number = self.joins, self._unnamed[kind] + 1
                self._unnamed[kind] = number
            try:
                return call(f"{kind_name}.noname.{joins}.{number}")
            except Exception:
                with self._changed:
                    if self.joins == joins:
                        self._unnamed[kind] -= 1
                raise

    def submit(self, submissions: Sequence[Submission]) -> None:
        """Queue submissions, which are announced together.

        Raises DuplicateNameError, or the error that has ended Horovod. Nothing is queued then.
        """
        with self._changed:
            self._check()
            names = [submission.request.name for submission in submissions]
            twice = [name for name in names if name in self._names]
            twice += [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise DuplicateNameError(
                    f"{twice[0]!r} is in use by an operation of this rank that is not finished; "
                    "expected another name, or a call of synchronize() first",
                    key=twice[0],
                    reason="duplicate",
                )
            if not self._queue:
                self._changed.notify_all()
            queued = len(self._queue)
            try:
                self._names.update(zip(names, submissions, strict=True))
                self._queue.extend(submissions)
            except Exception:  # no memory
                for name in names:
                    self._names.pop(name, None)
                del self._queue[queued:]
                raise

    def hurry(self) -> None:
        """Announce the queued submissions now, because a thread waits for them."""
        with self._changed:
            if self._queue:
                self._hurried = True
                self._changed.notify_all()

    def handle(self, name: str) -> OperationHandle:
        return OperationHandle(name, self.hurry)

    def close(self) -> None:
        """Finish the running operations and leave the group.

        Operations that wait for other ranks fail.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._running.put(None)
        self._threads[1].join(_DRAIN_SECONDS)
        self.group.close()
        for thread in self._threads:
            thread.join()
        self._fail(
            HorovodInternalError(
                "Horovod was shut down before this operation had finished: call synchronize() on "
                "every handle before shutdown()",
                reason="closed",
            )
        )

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping:
            raise HorovodInternalError(
                "Horovod is being shut down on this rank: no operation can be started",
                reason="closed",
            )

    def _negotiate(self) -> None:
        last = pause = 0.0
        longer = max(self._cycle_time, _SHORTEST_PAUSE)
        try:
            while self._await_turn(last, pause):
                last = time.monotonic()
                heard_something = self._cycle()
                # Where all ranks wait, each for another one, only a new submission helps.
                pause = 0.0 if heard_something else min(2 * pause + longer, _LONGEST_PAUSE)
        except Exception as error:
            self.end(error)

    def _await_turn(self, last: float, pause: float) -> bool:
        """Wait for a submission or an announced operation, and for the end of the cycle time.

        ``pause`` is the shortest time in seconds between two rounds if this rank has nothing to
        announce. Returns False if the thread must end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._queue or self._announced)
            while not self._stopping and not self._hurried:
                wanted = self._cycle_time if self._queue else max(pause, self._cycle_time)
                left = last + wanted - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return not self._stopping and self._failure is None

    def _cycle(self) -> bool:
        """Run a round of negotiation and start the responses that are ready.

        Returns whether any rank announced something.
        """
        with self._changed:
            batch, self._queue = self._queue, []
            self._hurried = False
            self._announced.update((s.request.name, s) for s in batch)
        self._timeline.cycle()
        said = self._cache.encode(s.request for s in batch)
        heard = exchange(self.group, said, self._wait_for_ranks)
        announced = self._cache.decode_all([h.announced for h in heard])
        self._trace(announced, heard)
        plan = self._negotiation.step(announced)
        for response in plan.responses:
            self._start(response)
        self._finish_join(plan)
        return any(announced)

    def _trace(self, announced: Sequence[Sequence[Request]], heard: Sequence[Heard]) -> None:
        for rank, requests in enumerate(announced):
            for request in requests:
                self._timeline.announced(
                    request.name, request.kind.name, self.ranks[rank], heard[rank].sent
                )

    def _start(self, response: Response) -> None:
        names = response.names
        with self._changed:
            submissions = [self._announced.pop(name, None) for name in names]
        if response.error:
            self._timeline.leave(names)
            error = HorovodInternalError(response.error, key=names[0], reason="mismatch")
            for submission in submissions:
                if submission is not None:
                    self._release(submission)
                    submission.handle.fail(error)
            return
        self._timeline.enter(names, "QUEUE")
        self._running.put(self._executor.start(response, submissions))

    def _finish_join(self, plan: ResponseList) -> None:
        if plan.last_joined is None:
            return
        with self._changed:
            self.joins += 1
            self._unnamed.clear()
            joins = [s for s in self._announced.values() if s.request.kind is Kind.JOIN]
            for submission in joins:
                del self._announced[submission.request.name]
        for submission in joins:
            self._release(submission)
            submission.handle.finish(self.ranks[plan.last_joined])
        self._timeline.leave(submission.request.name for submission in joins)

    def _collect(self) -> None:
        try:
            while (running := self._running.get()) is not None:
                for work in running.works:
                    work.wait()
                for submission, value in running.collect():
                    self._release(submission)
                    submission.handle.finish(value)
                self._timeline.leave(running.names)
        except Exception as error:
            self.end(error)

    def _release(self, submission: Submission) -> None:
        with self._changed:
            self._names.pop(submission.request.name, None)

    def _wait_for_ranks(self, work: AnyWork) -> Array:
        """Wait for a round of negotiation, which other ranks enter when they have operations."""
        while True:
            left = self._next_stall_check() - time.monotonic()
            try:
                return work.wait(max(0.0, min(left, _LONGEST_WAIT)))
            except RoundTimeoutError:
                if time.monotonic() >= self._next_stall_check():
                    self._check_stalls(self._absent())

    def _next_stall_check(self) -> float:
        return self._stalls.next_check((s.request.name, s.since) for s in self._waiting())

    def _waiting(self) -> list[Submission]:
        """The announced submissions that wait for other ranks, apart from joins."""
        with self._changed:
            return [s for s in self._announced.values() if s.request.kind is not Kind.JOIN]

    def _check_stalls(self, absent: list[int]) -> None:
        """Check for stalls. ``absent`` has the ranks that have not entered the open round."""
        me = self.ranks[self.group.rank]
        rows = []
        for submission in self._waiting():
            missing = self._negotiation.missing(submission.request.name)
            # Not in the tables yet: it is in the round that others have not entered.
            rows.append(
                (submission.request.name, submission.since, absent if me in missing else missing)
            )
        self._stalls.check(time.monotonic(), rows)

    def _absent(self) -> list[int]:
        """Global ranks that have not entered the open round of negotiation."""
        try:
            lanes = self.group.stats()["reducers"]
        except ReducerError:
            return []
        rows = [row for lane in lanes for row in lane.get("waiting", [])]
        absent = {rank for row in rows if row["key"].startswith(KEY) for rank in row["absent"]}
        return sorted(self.ranks[rank] for rank in absent)

    def end(self, error: BaseException) -> None:
        """End Horovod with an error.

        All pending and later operations fail. ``close`` still works.
        """
        if isinstance(error, ReducerError):
            failure = from_reducer_error(error)
        else:
            failure = HorovodInternalError(f"{type(error).__name__}: {error}", reason="internal")
        failure.__cause__ = error if failure is not error else None
        if not isinstance(error, ReducerError) or failure.reason in ("stalled", "timeout"):
            self.group.abort()  # nobody else knows; otherwise the reducers have told all ranks
        self._fail(failure)

    def _fail(self, failure: HorovodInternalError) -> None:
        with self._changed:
            self._failure = self._failure or failure
            failed = list(self._names.values())
            self._names.clear()
            self._queue.clear()
            self._announced.clear()
            self._changed.notify_all()
        for submission in failed:
            submission.handle.fail(self._failure)
