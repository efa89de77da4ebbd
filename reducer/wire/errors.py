"""Errors in three families; each class has its wire code.

- ``ProtocolError``: the peer broke the rules, or asks for what cannot be given. Reaction: close the
  connection. A few of its classes end the run for all ranks, as their docstrings say.
- ``RoundError``: a round or a job failed. Reaction: tell every rank.
- ``InternalError``: a bug in this program. Reaction: log the error with its stack and keep serving.

Input from a peer may raise only the first two families.
"""

from __future__ import annotations

from typing import ClassVar, Final

from reducer.wire.codes import ErrorCode


class ReductionError(Exception):
    """Base class of all errors that a peer is told; ``str(error)`` is the message."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL


class ProtocolError(ReductionError):
    """The peer broke the rules of PROTOCOL.md."""

    code = ErrorCode.PROTOCOL


class BadFrameError(ProtocolError):
    """The bytes are no frame of this version: bad magic, reserved field, kind, length or map."""


class ProtocolVersionError(ProtocolError):
    """The peer speaks another major version."""

    code = ErrorCode.VERSION


class AuthenticationError(ProtocolError):
    """The peer did not prove that it has the key, or it names a job whose key it did not prove."""

    code = ErrorCode.AUTHENTICATION


class JoinError(ProtocolError):
    """The HELLO does not fit the run that it names."""

    code = ErrorCode.JOIN


class QuotaError(ProtocolError):
    """The peer needs more memory, keys, runs, connections or reducers than this reducer allows."""

    code = ErrorCode.QUOTA


class RecordsError(QuotaError):
    """A run has used up its memory for keys, rounds and texts: the run ends for all ranks."""


class UnstableError(QuotaError):
    """Results that `rank` has not acknowledged fill the limit: the run ends for all ranks."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


class CorruptedError(ProtocolError):
    """A CRC does not match: bytes were changed in transit. The connection must be closed."""

    code = ErrorCode.CORRUPTED


class IntegrityError(ProtocolError):
    """Two copies of one contribution differ, and the reducer cannot know which one is right.

    The run ends for all ranks.
    """

    code = ErrorCode.INTEGRITY


class UnavailableError(ProtocolError):
    """The reducer is draining and takes no new run."""

    code = ErrorCode.UNAVAILABLE


class MismatchError(ProtocolError):
    """Workers describe one table differently."""

    code = ErrorCode.MISMATCH


class StateLostError(ProtocolError):
    """A table is not here any more: the lane's process, and its memory, is another one."""

    code = ErrorCode.STATE_LOST


class EvictedError(ProtocolError):
    """The sender, or the lane that it asks, was replaced: another one is in its place."""

    code = ErrorCode.EVICTED


class StaleBaseError(ProtocolError):
    """A push was computed from a version that the shard has not reached: a restore came between."""

    code = ErrorCode.STALE_BASE


class RoundError(ReductionError):
    """A round, or all rounds of a run, cannot be completed."""


# The errors that a peer can cause. Code that handles peers catches only these, so that bugs are
# not hidden.
PEER_ERRORS: Final = (ProtocolError, RoundError)


class PeerLostError(RoundError):
    """A rank left or died while other ranks need its contributions."""

    code = ErrorCode.PEER_LOST


class ExcludedError(PeerLostError):
    """The other ranks go on without this one."""


class InternalError(ReductionError):
    """A bug in this program."""

    code = ErrorCode.INTERNAL
