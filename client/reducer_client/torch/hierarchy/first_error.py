"""Errors as records for other ranks, and the choice of the first cause among all ranks' errors."""

from __future__ import annotations

import json

import numpy as np

from reducer_client import errors
from reducer_client.errors import ClosedError, PeerLostError, ReducerError, RoundTimeoutError
from reducer_client.group import Group
from reducer_client.torch.hierarchy.host_group import RECORD_BYTES

# Seconds. The other ranks see the end of a rank by its closed connections within milliseconds. The
# reducers detect a dead rank within a second.
_PATIENCE = 3.0
_TEXT_BYTES = 1200
_KEY_BYTES = 300


def pack_error(error: ReducerError | None) -> bytes:
    """The error as a record of at most RECORD_BYTES; empty for None."""
    if error is None:
        return b""
    fields = {
        "kind": type(error).__name__,
        "text": _cut(str(error), _TEXT_BYTES),
        "rank": error.rank,
        "round": error.round,
        "key": None if error.key is None else _cut(error.key, _KEY_BYTES),
        "reason": error.reason,
    }
    return json.dumps(fields, ensure_ascii=False).encode()[:RECORD_BYTES]


def unpack_error(record: bytes) -> ReducerError:
    """The error of a record that `pack_error` made."""
    try:
        fields = json.loads(record)
        kind: type[ReducerError] = getattr(errors, fields.pop("kind"))
        return kind(fields.pop("text"), **fields)
    except ValueError:  # the record was truncated
        return ReducerError(record.decode(errors="replace"))


def find_cause(group: Group, key: str, mine: ReducerError) -> ReducerError:
    """Agree on the error that all ranks raise. Each rank calls this with its own error.

    If a rank is dead or does not come, the error names that rank. Otherwise it is the error of the
    lowest rank whose error does not only report that another rank has left.
    """
    record = np.frombuffer(pack_error(mine).ljust(RECORD_BYTES, b"\0"), np.uint8)
    try:
        said = group.all_gather(record, key=key).wait(_PATIENCE)
    except PeerLostError as lost:
        return lost if lost.reason == "lost" or _is_echo(mine) else mine
    except RoundTimeoutError as absent:
        return RoundTimeoutError(
            f"{mine}; while the ranks compared errors: {absent}", rank=absent.rank, reason="timeout"
        )
    except ReducerError:
        return mine
    found = [unpack_error(row.tobytes().rstrip(b"\0")) for row in said]
    return next((error for error in found if not _is_echo(error)), mine)


def _is_echo(error: ReducerError) -> bool:
    return isinstance(error, ClosedError) or (
        isinstance(error, PeerLostError) and error.reason != "lost"
    )


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")
