"""Client of the open Reduction Server: arrays summed over the workers of a job by its reducers.

    with reducer_client.connect(["host:2222"], job="name", rank=r, world_size=n) as group:
        result = group.all_reduce(array, op="mean").wait()

PyTorch: ``reducer_client.torch``.
"""

from __future__ import annotations

from reducer_client.errors import (
    AuthenticationError,
    ClosedError,
    IntegrityError,
    JoinError,
    MismatchError,
    NumericError,
    PeerLostError,
    ProtocolError,
    ProtocolVersionError,
    QuotaExceededError,
    ReducerError,
    ReducerUnavailableError,
    RoundTimeoutError,
)
from reducer_client.group import Group
from reducer_client.joining import connect
from reducer_client.local import local_reducers
from reducer_client.work import Work

__all__ = [
    "AuthenticationError",
    "ClosedError",
    "Group",
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
    "Work",
    "connect",
    "local_reducers",
]
