"""Errors in three families; each class knows its wire code and whether a retry can help.

- ``ProtocolError``: the peer broke the rules. Reaction: close that connection.
- ``RoundError``: this round or job failed. Reaction: tell every rank.
- ``InternalError``: our bug. Reaction: log it with its stack and keep serving.

Nothing that a peer sends may raise anything outside the first two families.
"""

from __future__ import annotations

from typing import ClassVar, Final

from reducer.wire.codes import ErrorCode


class ReductionError(Exception):
    """Base of all families; ``str()`` of it is the message that the peer is sent."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    retryable: ClassVar[bool] = False


class ProtocolError(ReductionError):
    """The peer broke the rules of PROTOCOL.md."""

    code = ErrorCode.PROTOCOL


class BadFrameError(ProtocolError):
    """Bytes that are no frame of this version: magic, reserved field, kind, length, map."""


class ProtocolVersionError(ProtocolError):
    """The peer speaks another major version."""

    code = ErrorCode.VERSION


class AuthenticationError(ProtocolError):
    """The peer could not prove that it has the key, or speaks for another job than its own."""

    code = ErrorCode.AUTHENTICATION


class JoinError(ProtocolError):
    """The hello does not fit the run that it asks for."""

    code = ErrorCode.JOIN


class QuotaError(ProtocolError):
    """More memory, keys or jobs than this reducer may give."""

    code = ErrorCode.QUOTA


class RecordsError(QuotaError):
    """A run has filled its room for keys, rounds and texts: it ends for all of its ranks."""


class UnstableError(QuotaError):
    """Results that `rank` does not say it holds have filled their room: the run ends for all."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


class CorruptedError(ProtocolError):
    """A CRC does not match: bytes were changed in transit, and the connection is done for."""

    code = ErrorCode.CORRUPTED
    retryable = True


class IntegrityError(ProtocolError):
    """Two copies of one contribution differ: nobody knows which one is right."""

    code = ErrorCode.INTEGRITY


class UnavailableError(ProtocolError):
    """The reducer is draining and takes no new run."""

    code = ErrorCode.UNAVAILABLE
    retryable = True


class RoundError(ReductionError):
    """A round, or all rounds of a job, cannot be completed."""


# What a peer can cause. Whoever deals with peers catches these alone: a bug of ours must show.
PEER_ERRORS: Final = (ProtocolError, RoundError)


class PeerLostError(RoundError):
    """A rank left or died while others need it."""

    code = ErrorCode.PEER_LOST


class InternalError(ReductionError):
    """A bug of ours."""

    code = ErrorCode.INTERNAL
