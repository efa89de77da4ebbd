"""Work: the handle of what was submitted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from reducer.wire.codes import Flag
from reducer_client.engine import EngineError
from reducer_client.errors import NumericError, ReducerError, RoundTimeoutError, from_engine
from reducer_client.reports import Absent, StallReports

if TYPE_CHECKING:
    from reducer_client._engine import Engine, Operation

T = TypeVar("T")
Timeout: TypeAlias = float | timedelta

# How often a waiting call looks for stall reports, seconds. The engine wakes it at once when the
# operation is finished, so this adds nothing to a round.
_REPORT_INTERVAL = 1.0
_NO_REPORT = "no reducer has reported absent ranks yet; do all ranks submit this key?"


@dataclass(frozen=True)
class WorkContext:
    """What all works of a group share."""

    engine: Engine
    reports: StallReports
    step_timeout: float
    fail_on_overflow: bool
    fail_on_nonfinite: bool

    def limit(self, timeout: Timeout | None) -> float:
        """Seconds of what a call was given."""
        if timeout is None:
            return self.step_timeout
        return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


class Work(Generic[T]):
    """One submitted call. Any thread may wait for it, any number of times.

    The arrays that were passed in may be changed as soon as the submitting call has returned; the
    result and ``out`` belong to the client until ``wait`` has returned or ``done`` is true (also
    where ``out`` is the array itself: its chunks are read as they are sent).
    """

    def __init__(
        self, context: WorkContext, key: str, operations: Sequence[Operation], result: T
    ) -> None:
        self._context = context
        self._operations = tuple(operations)
        self._result = result
        self._failure: ReducerError | None = None
        self.key = key

    def __repr__(self) -> str:
        return f"<Work key={self.key!r} round={self.round} done={self.done}>"

    @property
    def done(self) -> bool:
        """Whether the call is finished, well or not; ``wait`` then returns or raises at once."""
        return self._failure is not None or all(op.done for op in self._operations)

    @property
    def round(self) -> int | None:
        """The number of the round of ``key``, from 0; None for a call that sent nothing."""
        return self._operations[0].round if self._operations else None

    @property
    def overflow(self) -> bool:
        """Whether an integer of the result wrapped, once done."""
        return bool(self._flags() & Flag.OVERFLOW)

    @property
    def nan(self) -> bool:
        """Whether the result holds a NaN, once done."""
        return bool(self._flags() & Flag.NAN)

    @property
    def nonfinite(self) -> bool:
        """Whether the result, or a contribution to it, holds NaN or Inf, once done.

        For min and max NaN alone counts. Equal on all ranks; what is only moved is not looked at.
        """
        return bool(self._flags() & Flag.NONFINITE)

    @property
    def nonfinite_rank(self) -> int | None:
        """The lowest rank that contributed NaN or Inf, once done.

        None with ``nonfinite`` set: finite contributions, whose sum grew beyond the dtype.
        """
        return min((op.culprit[0] for op in self._operations if op.culprit), default=None)

    def wait(self, timeout: Timeout | None = None) -> T:
        """Wait for the result and return it.

        Args:
            timeout: seconds, or a timedelta; None takes the group's ``step_timeout``.

        Raises:
            RoundTimeoutError: not finished in time; it names the ranks that are absent, as the
                reducers know them. The round stays open, ``wait`` may be called again.
            ReducerError: one of its children, if the round or the group failed.
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
        self._check()
        return self._result

    def exception(self) -> ReducerError | None:
        """Why the call failed; None if it did not, or is not done yet."""
        if not self.done:
            return None
        try:
            self._check()
        except ReducerError as error:
            return error
        return None

    def expire(self, limit: float, absent: Absent) -> None:
        """Called by the completer: its time is over."""
        self._failure = self._timed_out(self._operations[0], limit, absent)

    def fail(self, error: ReducerError) -> None:
        """Called by the completer where the engine will not finish the operation any more."""
        self._failure = error

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
        known = [f"absent: {_ranks(ranks)}"] if ranks else []
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


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


def _nonfinite(operation: Operation) -> NumericError:
    """The same text on every rank."""
    rank = None
    if operation.culprit is None:
        text = (
            f"the result of {operation.key!r} in round {operation.round} is not finite, though all "
            "contributions are: it grew beyond its dtype; scale the input or reduce in a wider one"
        )
    else:
        rank, chunk = operation.culprit
        text = (
            f"rank {rank} contributed NaN or Inf to {operation.key!r} in round {operation.round} "
            f"(first at chunk {chunk}); look at what that rank computed"
        )
    return NumericError(
        text, rank=rank, key=operation.key, round=operation.round, reason="nonfinite"
    )


def _slice(deadline: float) -> float:
    return max(0.0, min(_REPORT_INTERVAL, deadline - time.monotonic()))
