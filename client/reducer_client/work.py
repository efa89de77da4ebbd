"""Work: the handle of a submitted call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from reducer.wire.codes import Flag
from reducer_client.engine import EngineError
from reducer_client.errors import (
    NumericError,
    ReducerError,
    RoundTimeoutError,
    from_engine,
    name_ranks,
)
from reducer_client.reports import Absent, StallReports

if TYPE_CHECKING:
    from reducer_client._engine import Engine, Operation

T = TypeVar("T")
Timeout: TypeAlias = float | timedelta

# Seconds between two looks for stall reports during a wait. The engine wakes the waiting thread as
# soon as the operation has finished, so the interval does not delay a round.
_REPORT_INTERVAL = 1.0
_NO_REPORT = "no reducer has reported absent ranks yet; do all ranks submit this key?"


@dataclass(frozen=True)
class WorkContext:
    """The engine and the settings that all works of a group share."""

    engine: Engine
    reports: StallReports
    step_timeout: float
    fail_on_overflow: bool
    fail_on_nonfinite: bool
    world_size: int

    def members(self, epoch: int) -> tuple[int, ...]:
        """The ranks that were in at this epoch. Raises EngineError in a forked child."""
        gone = {rank for since, rank in self.engine.view if since <= epoch}
        return tuple(rank for rank in range(self.world_size) if rank not in gone)

    def limit(self, timeout: Timeout | None) -> float:
        """The timeout of a call in seconds; None means the group's step timeout."""
        return self.step_timeout if timeout is None else as_seconds(timeout)


class LedgerEntry(NamedTuple):
    """Whose contributions the next ``elements`` elements of a result hold.

    ``members`` are the ranks of the view of ``epoch``. The sum was divided by ``divisor``.
    """

    elements: int
    epoch: int
    members: tuple[int, ...]
    divisor: int


class Work(Generic[T]):
    """One submitted call. Any thread may wait for the work, any number of times.

    The program may change the input arrays as soon as the submitting call has returned. The result
    and ``out`` belong to the client until ``wait`` has returned or ``done`` is true. The same holds
    for an input array that is also ``out``: the client reads each chunk when it sends the chunk.

    Attributes:
        key: the key of the call.
    """

    def __init__(
        self,
        context: WorkContext,
        key: str,
        operations: Sequence[Operation],
        result: T,
        divides: bool = False,
        unpack: Callable[[], None] | None = None,
    ) -> None:
        self._divides = divides
        self._unpack = unpack
        self._context = context
        self._operations = tuple(operations)
        self._result = result
        self._failure: ReducerError | None = None
        self.key = key

    def __repr__(self) -> str:
        return f"<Work key={self.key!r} round={self.round} done={self.done}>"

    @property
    def done(self) -> bool:
        """Whether the call has ended, with or without an error: ``wait`` does not block then."""
        return self._failure is not None or all(op.done for op in self._operations)

    @property
    def round(self) -> int | None:
        """The number of the call's round of ``key``, from 0; None if the call sent nothing."""
        return self._operations[0].round if self._operations else None

    @property
    def overflow(self) -> bool:
        """Whether an integer of the result wrapped. False until the work is done."""
        return bool(self._flags() & Flag.OVERFLOW)

    @property
    def nan(self) -> bool:
        """Whether the result has a NaN; False until the work is done."""
        return bool(self._flags() & Flag.NAN)

    @property
    def nonfinite(self) -> bool:
        """Whether the result or a contribution has NaN or Inf; False until the work is done.

        The value is equal on all ranks. For min and max only NaN counts. broadcast and all_gather
        do not inspect the values.
        """
        return bool(self._flags() & Flag.NONFINITE)

    @property
    def nonfinite_rank(self) -> int | None:
        """The lowest rank that contributed NaN or Inf; None until the work is done.

        If ``nonfinite`` is true and this is None, all contributions were finite and their reduction
        exceeded the dtype's range.
        """
        return min((op.culprit[0] for op in self._operations if op.culprit), default=None)

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Whose contributions the result of an all_reduce holds, in the order of its elements.

        If ranks were lost while the round was under way, parts of the result may hold the
        contributions of fewer ranks. The ledger is equal on all ranks. Of a work that is not done,
        has failed, or belongs to a job whose workers cannot change, the ledger is empty.
        """
        entries: list[LedgerEntry] = []
        for operation in self._operations:
            for elements, epoch in operation.sets:
                members = self._context.members(epoch)
                divisor = len(members) if self._divides else 1
                entries.append(LedgerEntry(elements, epoch, members, divisor))
        return tuple(entries)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks whose contributions the result holds.

        Raises ValueError if parts of the result hold the contributions of different ranks: `ledger`
        names them.
        """
        sets = {entry.members for entry in self.ledger}
        if len(sets) > 1:
            raise ValueError(
                f"work {self.key!r} holds the sums of {len(sets)} sets of ranks, because ranks "
                "were lost while it was under way: see Work.ledger"
            )
        return sets.pop() if sets else tuple(range(self._context.world_size))

    def wait(self, timeout: Timeout | None = None) -> T:
        """Wait for the result and return it.

        Args:
            timeout: seconds or a timedelta; None means the group's ``step_timeout``.

        Returns:
            The result of the call, with the shape and dtype that the call's docstring gives.

        Raises:
            RoundTimeoutError: the round did not finish in time. The text names the ranks that the
                reducers report as absent. The round stays open, and ``wait`` may be called again.
            MismatchError: the ranks submitted different things as this round.
            NumericError: with ``on_overflow="error"`` or ``on_nonfinite="error"``.
            ReducerError: another subclass, if the group has ended (PeerLostError and so on).
        """
        limit = self._context.limit(timeout)
        deadline = time.monotonic() + limit
        for operation in self._operations:
            while not self._wait_for(operation, _slice(deadline)):
                self._context.reports.collect()
                if time.monotonic() < deadline:
                    continue
                absent = self._context.reports.ask()
                if not operation.done:
                    raise self._timed_out(operation, limit, absent)
        self._context.reports.collect()
        self._check()
        self._unpack_once()
        return self._result

    def fill(self, elements: int) -> None:
        """The array holds this many of its elements. For a call with ``Parts``."""
        if not self.done:
            self._context.engine.fill(self._operations[0], elements)

    def exception(self) -> ReducerError | None:
        """The error that ``wait`` raises; None if the call succeeded or is not done yet."""
        if not self.done:
            return None
        try:
            self._check()
        except ReducerError as error:
            return error
        return None

    def _expire(self, limit: float, absent: Absent) -> None:
        """Fail the work with RoundTimeoutError. The completer calls this at the deadline."""
        self._failure = self._timed_out(self._operations[0], limit, absent)

    def _fail(self, error: ReducerError) -> None:
        """Fail the work. The completer calls this if the engine will never finish the operation."""
        self._failure = error

    def _unpack_once(self) -> None:
        if self._unpack is not None:
            self._unpack()

    def _wait_for(self, operation: Operation, seconds: float) -> bool:
        try:
            return self._context.engine.wait(operation, seconds)
        except EngineError as error:  # in a forked child
            raise from_engine(error.args) from None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        for operation in self._operations:
            if operation.error is not None:
                raise from_engine(operation.error)
            if self._context.fail_on_overflow and operation.flags & Flag.OVERFLOW:
                raise NumericError(
                    f"key {operation.key!r}, round {operation.round}: the result overflowed and "
                    "wrapped; reduce in a wider dtype or scale the input",
                    key=operation.key,
                    round=operation.round,
                    reason="overflow",
                )
            if self._context.fail_on_nonfinite and operation.flags & Flag.NONFINITE:
                raise _nonfinite(operation)

    def _flags(self) -> int:
        flags = 0
        for operation in self._operations:
            flags |= operation.flags
        return flags

    def _timed_out(self, operation: Operation, limit: float, absent: Absent) -> RoundTimeoutError:
        ranks = absent.get((operation.key, operation.round), [])
        known = [f"absent: {name_ranks(ranks)}"] if ranks else []
        if reports := self._context.reports.describe(operation.key):
            known.append(reports)
        return RoundTimeoutError(
            f"key {operation.key!r}, round {operation.round}: not finished after {limit:g} s; "
            f"{'; '.join(known) or _NO_REPORT}",
            rank=ranks[0] if len(ranks) == 1 else None,
            key=operation.key,
            round=operation.round,
            reason="timeout",
        )


def as_seconds(timeout: Timeout) -> float:
    """A timeout in seconds."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def _nonfinite(operation: Operation) -> NumericError:
    """The error for NaN or Inf in a round. Its text must be the same on every rank."""
    rank = None
    if operation.culprit is None:
        text = (
            f"the result of {operation.key!r} in round {operation.round} is not finite, though all "
            "contributions are: it exceeds its dtype; scale the input or reduce in a wider dtype"
        )
    else:
        rank, chunk = operation.culprit
        text = (
            f"rank {rank} contributed NaN or Inf to {operation.key!r} in round {operation.round} "
            f"(first at chunk {chunk}); check the values that this rank computes"
        )
    return NumericError(
        text, rank=rank, key=operation.key, round=operation.round, reason="nonfinite"
    )


def _slice(deadline: float) -> float:
    return max(0.0, min(_REPORT_INTERVAL, deadline - time.monotonic()))
