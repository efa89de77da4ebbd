"""A run that is forming: the ranks that have said HELLO, and the terms of the first one."""

from __future__ import annotations

from typing import Final

from reducer.core.rounds.view import View
from reducer.wire import messages
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import PROTOCOL_MAJOR
from reducer.wire.errors import ExcludedError, JoinError
from reducer.wire.keys import run_title, split_run_id
from reducer.wire.losses import parse_losses

# Job, run id, and whether the run has formed before. The run id is "" unless all ranks must give
# it, as in a group or a rejoin; one such run of a job forms at a time.
FormingId = tuple[str, str, bool]
WEIGHTS_MINOR: Final = 2  # the minor version that brought weights


def forming_id(hello: messages.Hello) -> FormingId:
    """The part that is equal in the HELLOs of one forming run."""
    named = hello.rejoin or hello.elastic or bool(split_run_id(hello.run_id)[1])
    return hello.job, hello.run_id if named else "", hello.rejoin


def excluded(title: str) -> ExcludedError:
    return ExcludedError(
        f"the other ranks of job {title!r} took this rank for lost and go on without it: join the "
        "job again from a new process"
    )


class Forming:
    """The ranks of a run until it has formed; `sessions` and `incarnations` by rank.

    A rank whose connection has ended is forgotten, with everything that it has said. A process that
    was started again can then take its place, and a new rank 0 can name another run id.

    If the run has formed before, this lane has lost its state or never had it. Only the processes
    of the run come back, so no other process may join.
    """

    def __init__(self, hello: messages.Hello) -> None:
        self.job = hello.job
        self.id = forming_id(hello)
        self.title = run_title(self.job, self.id[1])
        self.world_size = hello.world_size
        self.reducers = hello.reducers
        self.slot = -1
        self.table: ChunkTable = ()
        self.digest_every = 0
        self.worker_silence_ms = 0
        self.weights: tuple[int, ...] = ()
        self.elastic = hello.elastic
        self.view = View(hello.world_size)
        self.sessions: dict[int, int] = {}
        self.incarnations: dict[int, bytes] = {}
        self.changed = False
        self._run_ids: dict[int, str] = {}  # of the ranks that have given one
        self._minors: dict[int, int] = {}  # the minor version of the protocol, by rank

    def admit(self, hello: messages.Hello, session: int) -> int | None:
        """Admit the rank. Returns the session that the rank had before, if any.

        Raises JoinError, which names both sides, if the hello does not fit.
        """
        who = f"rank {hello.rank} of job {self.title!r}"
        self._agree(who, "world size", hello.world_size, self.world_size)
        self._agree(who, "number of reducers", hello.reducers, self.reducers)
        if hello.elastic != self.elastic:
            first, other = ("goes on", "ends") if hello.elastic else ("ends", "goes on")
            raise JoinError(
                f"{who} {first} when a rank is lost, rank {min(self.sessions)} {other}: start all "
                "ranks with the same on_worker_loss"
            )
        if hello.rank >= hello.world_size:
            raise JoinError(f"{who} is outside its world size {hello.world_size}")
        if self.incarnations.get(hello.rank, hello.incarnation) != hello.incarnation:
            raise JoinError(
                f"{who} has joined already, from another process: start each rank once, or try "
                "again when the connection of the old process has ended"
            )
        if hello.run_id and self.run_id and hello.run_id != self.run_id:
            raise JoinError(
                f"{who} asks for run {hello.run_id!r}, but run {self.run_id!r} is forming: give "
                "all ranks the same run id, and start one run of the job at a time"
            )
        self._check_minors(hello)
        self._take_view(who, hello)
        if hello.rank == self.view.lowest:
            self._take_rules(who, hello)
        if hello.run_id:
            self._run_ids[hello.rank] = hello.run_id
        before = self.sessions.get(hello.rank)
        self.sessions[hello.rank] = session
        self.incarnations[hello.rank] = hello.incarnation
        self._minors[hello.rank] = hello.minor
        self.changed = True
        return before

    def _take_view(self, who: str, hello: messages.Hello) -> None:
        """Take the newest view that a rank knows; a run that has not formed has all its ranks."""
        lost = parse_losses(hello.lost)
        if lost and not (hello.rejoin and self.elastic):
            raise JoinError(f"{who} names {len(lost)} lost ranks, but its run has lost none")
        if lost[: len(self.view.lost)] == self.view.lost:
            self.view = self.view.after(lost)
        elif self.view.lost[: len(lost)] != lost:
            raise JoinError(
                f"{who} names the lost ranks (epoch, rank) {lost!r:.200}, rank "
                f"{min(self.sessions)} names {self.view.lost!r:.200}"
            )
        if hello.rank in self.view.out:
            raise excluded(self.title)

    def put_out(self) -> list[int]:
        """Forget the ranks that the view excludes. Returns their sessions."""
        gone = [rank for rank in self.sessions if rank in self.view.out]
        sessions = [self.sessions[rank] for rank in gone]
        for rank in gone:
            self.leave(rank)
        return sessions

    def _check_minors(self, hello: messages.Hello) -> None:
        """Refuse weights if a rank cannot understand them: it would send to the wrong lanes."""
        known = self.weights if self.view.lowest in self.sessions else ()
        if not (hello.weights if hello.rank == self.view.lowest else known):
            return
        for rank, minor in {**self._minors, hello.rank: hello.minor}.items():
            if minor < WEIGHTS_MINOR:
                raise JoinError(
                    f"the reducers of job {self.title!r} have weights, which protocol "
                    f"{PROTOCOL_MAJOR}.{minor} of rank {rank} does not have: expected "
                    f"{PROTOCOL_MAJOR}.{WEIGHTS_MINOR} or newer; install the same release on all "
                    "workers"
                )

    def _take_rules(self, who: str, hello: messages.Hello) -> None:
        if not hello.run_id or not hello.chunk_table:
            missing = "chunk table" if hello.run_id else "run id"
            raise JoinError(
                f"{who} names no {missing}; rank 0 must name a run id and a chunk table"
            )
        if hello.slot >= hello.reducers:
            raise JoinError(
                f"{who} gives slot {hello.slot} of {hello.reducers} reducers; expected 0 to "
                f"{hello.reducers - 1}"
            )
        if hello.weights and len(hello.weights) != hello.reducers:
            raise JoinError(
                f"{who} gives {len(hello.weights)} weights; expected {hello.reducers}, one for "
                "each reducer"
            )
        self.slot = hello.slot
        self.table = hello.chunk_table
        self.digest_every = hello.digest_every
        self.worker_silence_ms = hello.worker_silence_ms
        self.weights = hello.weights

    def _agree(self, who: str, what: str, got: int, expected: int) -> None:
        if got != expected:
            raise JoinError(
                f"{who} says {what} {got}, rank {min(self.sessions)} says {expected}: "
                f"start all ranks with the same {what}"
            )

    def leave(self, rank: int) -> None:
        self.sessions.pop(rank, None)
        self.incarnations.pop(rank, None)
        self._run_ids.pop(rank, None)
        self._minors.pop(rank, None)
        self.changed = True

    @property
    def run_id(self) -> str:
        """The run id that ranks have given; "" before any rank has given one."""
        return next(iter(self._run_ids.values()), "")

    @property
    def formed(self) -> bool:
        """Whether all ranks have joined."""
        return len(self.sessions) == self.view.count

    def absent(self, most: int) -> list[int]:
        """The first `most` absent ranks.

        This looks at no more ranks than have joined and `most` others, because a peer may claim
        a huge world size.
        """
        found: list[int] = []
        for rank in range(self.world_size):
            if len(found) == most:
                break
            if rank not in self.sessions and rank not in self.view.out:
                found.append(rank)
        return found
