"""What the client raises: one base, ``ReducerError``, and a class for each cause.

A framework may hand an error on as a plain ``RuntimeError`` (a failed DDP hook does), so the base
is one. Every error can be pickled, with its attributes, on its way out of a worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reducer.wire.codes import ErrorCode

__all__ = [
    "AuthenticationError",
    "ClosedError",
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
]


class ReducerError(RuntimeError):
    """Base of everything that this client raises about a group.

    Attributes:
        rank: the rank that the error is about, or None.
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
    """A reducer cannot be reached, or has gone away."""


class JoinError(ReducerError):
    """The run would not have this rank: rank twice, another world size or run id, peers missing."""


class PeerLostError(ReducerError):
    """Another worker died, fell silent or left in the middle of the run; ``rank`` says which."""


class MismatchError(ReducerError):
    """The ranks submitted different things as one round; the group works on after it."""


class RoundTimeoutError(ReducerError, TimeoutError):
    """The round was not finished in time. It stays open: the same work may be waited for again."""


class AuthenticationError(ReducerError):
    """A reducer or this client could not prove who it is."""


class QuotaExceededError(ReducerError):
    """The reducer has no memory for this job, or the job has its share of runs or connections."""


class NumericError(ReducerError):
    """An integer wrapped (``on_overflow="error"``), or NaN or Inf came (``on_nonfinite="error"``).

    ``rank`` is the lowest one that contributed NaN or Inf; ``reason`` is "overflow" or "nonfinite".
    """


class IntegrityError(ReducerError):
    """Bytes were damaged on the way, two copies of a contribution differ, or the ranks' results.

    ``reason`` is "digest" where results differ (``connect(digest_every=...)``), and ``rank`` then
    one of the ranks that have others than most.
    """


class ProtocolError(ReducerError):
    """Reducer and client do not follow the same protocol; or no reducer answers at the address."""


class ProtocolVersionError(ProtocolError):
    """Reducer and client are of different major versions."""


class ClosedError(ReducerError):
    """The group is closed, or belongs to the parent of this forked process."""


_BY_CODE: dict[int, type[ReducerError]] = {
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
}
_CLOSED_REASONS = frozenset({"closed", "forked"})


def from_engine(args: Sequence[Any]) -> ReducerError:
    """The error for the engine's ``(code, message, rank, reason, key, round)``; -1 and "": none."""
    code, message, rank, reason, key, round_number = args
    kind = _BY_CODE.get(code, ReducerError)
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


def _rebuild(kind: type[ReducerError], message: str, state: dict[str, Any]) -> ReducerError:
    error = kind(message)
    error.__dict__.update(state)
    return error
