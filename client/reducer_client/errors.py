"""The client's errors: a base class, ``ReducerError``, and one class for each cause.

The base is a ``RuntimeError``, because frameworks may turn an error into one (DDP does so when its
hook fails). All errors can be pickled with their attributes, so that they can leave a worker
process.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from reducer.wire.codes import ErrorCode
from reducer_client.hosted.failures import HostedError, NotStartedError

__all__ = [
    "AuthenticationError",
    "ClosedError",
    "EvictedError",
    "IntegrityError",
    "JoinError",
    "MismatchError",
    "NumericError",
    "PeerLostError",
    "ProtocolError",
    "ProtocolVersionError",
    "QuotaExceededError",
    "ReducerError",
    "ReducerUnavailableError",
    "RoundTimeoutError",
    "StaleBaseError",
    "StateLostError",
]


class ReducerError(RuntimeError):
    """Base class of all errors that concern a group.

    Attributes:
        rank: the rank that the error concerns, or None.
        round: the number of the round of ``key`` that failed, or None.
        key: the key whose round failed, or None.
        reason: a short word for programs ("lost", "left", "closed", "forked" ...), or "".
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        round: int | None = None,
        key: str | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.round = round
        self.key = key
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], self.__dict__.copy())


class ReducerUnavailableError(ReducerError):
    """A reducer cannot be reached while joining, or none can for ``reducer_wait`` seconds later.

    The loss of a reducer raises no error while another one is live. After this error the group has
    ended.

    What to do: run `reducer doctor` on the worker's host. It says which reducer does not answer,
    and why. Start the job again when the reducers are up.
    """


class JoinError(ReducerError):
    """The run refused this rank, or not all ranks came within ``connect_timeout``.

    The run refuses a rank that has joined already, another world size, number of reducers or run
    id, and an address list that names a reducer twice. There is no group.

    What to do: compare job, addresses and world size on all ranks (`reducer env`), and end
    processes of an earlier start of the job.
    """


class PeerLostError(ReducerError):
    """Worker ``rank`` died, fell silent, failed or left before the end of the run.

    ``reason`` is "lost", "failed" or "left"; in a hierarchy also "neighbour": a rank of the same
    host closed its connection. The group has ended.

    What to do: read the log of that worker, and start the job again from the last checkpoint. An
    elastic job goes on without the worker.
    """


class MismatchError(ReducerError):
    """The ranks submitted different collectives, dtypes, sizes or ops as one round.

    The group is still usable.

    What to do: the text names the calls and their ranks. Make the same calls in the same order on
    all ranks, or give each call a key.
    """


class RoundTimeoutError(ReducerError, TimeoutError):
    """The round did not finish in time; ``rank`` is the absent rank where only one is absent.

    The round stays open: ``wait`` may be called again on the same work. A second call of the
    collective would begin another round. If the program has no work to wait for (``barrier``,
    ``on_done``, the calls of the frameworks), the group has ended.

    What to do: look at the ranks that the text names. If they are only slow, raise
    ``step_timeout``.
    """


class AuthenticationError(ReducerError):
    """A reducer or this client could not prove its identity, or their security modes differ.

    There is no group. The error comes at once, whatever the connect timeout.

    What to do: the text says what is missing. Give the worker the key file or the certificates of
    the reducers.
    """


class QuotaExceededError(ReducerError):
    """The job needs more memory, records, keys, runs, connections or reducers than its share.

    Also raised for a call whose array has more chunks than the protocol allows. The run ends if the
    limit was reached while it was under way.

    What to do: the text names the limit. Raise it on the reducers, or limit the other jobs.
    """


class NumericError(ReducerError):
    """An integer result wrapped, or a contribution or the result has NaN or Inf.

    Raised only with ``on_overflow="error"`` (``reason`` is "overflow") or
    ``on_nonfinite="error"`` (``reason`` is "nonfinite"). ``rank`` is the lowest rank that
    contributed NaN or Inf, or None. The group is still usable.

    What to do: check the values of that rank, scale the input, or reduce in a wider dtype.
    """


class IntegrityError(ReducerError):
    """Bytes were damaged, or two copies of a contribution or of a result differ.

    Damaged bytes end the group if they come while the worker joins, or ten times in a row from the
    last live reducer. Otherwise the worker connects again, and after several times puts the reducer
    out of the job.

    ``reason`` is "digest" if the ranks hold different results (``connect(digest_every=...)``).
    ``rank`` is then one of the ranks whose results differ from the majority. The group has ended.

    What to do: suspect the memory or the NIC of the machine that the text names, and start again
    from a checkpoint that is older than the rounds in the text.
    """


class ProtocolError(ReducerError):
    """The peer violated the protocol, or the process at the address is not a reducer.

    What to do: check address and port. If a reducer is there, report the text as a bug.
    """


class ProtocolVersionError(ProtocolError):
    """Reducer and client speak different major versions of the protocol.

    What to do: install releases with the same major version of the protocol on both sides.
    """


class StateLostError(ReducerError):
    """A table's parameters are lost: each reducer that held a part of them has ended.

    What to do: load the last checkpoint, and begin a new run.
    """


class StaleBaseError(ReducerError):
    """A push was computed from parameters that are newer than the table: a restore came between.

    What to do: pull the parameters, and compute the gradient again.
    """


class EvictedError(ReducerError):
    """Another reducer holds this part of the tables now, or the table was dropped by a worker.

    The client looks for the new place by itself. What to do if the error reaches the program:
    connect again.
    """


class ClosedError(ReducerError):
    """The group is closed, or this process is a forked child and the group is its parent's.

    What to do: make no call after ``close()``, and call ``connect`` in the child itself.
    """


BY_CODE: dict[int, type[ReducerError]] = {
    ErrorCode.PROTOCOL: ProtocolError,
    ErrorCode.VERSION: ProtocolVersionError,
    ErrorCode.AUTHENTICATION: AuthenticationError,
    ErrorCode.JOIN: JoinError,
    ErrorCode.MISMATCH: MismatchError,
    ErrorCode.PEER_LOST: PeerLostError,
    ErrorCode.QUOTA: QuotaExceededError,
    ErrorCode.INTEGRITY: IntegrityError,
    ErrorCode.UNAVAILABLE: ReducerUnavailableError,
    ErrorCode.TIMEOUT: RoundTimeoutError,
    ErrorCode.NUMERIC: NumericError,
    ErrorCode.INTERNAL: ReducerError,
    ErrorCode.CORRUPTED: IntegrityError,
    ErrorCode.STATE_LOST: StateLostError,
    ErrorCode.STALE_BASE: StaleBaseError,
    ErrorCode.EVICTED: EvictedError,
}
_CLOSED_REASONS = frozenset({"closed", "forked"})


def from_engine(args: Sequence[Any]) -> ReducerError:
    """The error for the engine's ``(code, message, rank, reason, key, round)``.

    The values -1 and "" mean that there is none.
    """
    code, message, rank, reason, key, round_number = args
    kind = BY_CODE.get(code, ReducerError)
    if code == ErrorCode.UNAVAILABLE and reason in _CLOSED_REASONS:
        kind = ClosedError
    if key and repr(key) not in message and f"'{key}'" not in message:
        message = f"{message}; key {key!r}" + (
            f", round {round_number}" if round_number >= 0 else ""
        )
    return kind(
        message,
        rank=rank if rank >= 0 else None,
        round=round_number if round_number >= 0 else None,
        key=key or None,
        reason=reason,
    )


@contextmanager
def of_hosted() -> Generator[None]:
    """Turn the errors of `reducer_client.hosted` that the block raises into the client's."""
    try:
        yield
    except NotStartedError as error:
        raise ReducerUnavailableError(str(error)) from None
    except HostedError as error:
        raise JoinError(str(error)) from None


def name_ranks(ranks: Sequence[int]) -> str:
    """Text such as "rank 3" or "ranks 0, 2" for messages."""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


def _rebuild(kind: type[ReducerError], message: str, state: dict[str, Any]) -> ReducerError:
    error = kind(message)
    error.__dict__.update(state)
    return error
