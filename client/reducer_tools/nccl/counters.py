"""The reducers' own byte counters of one run: what they say they have moved."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reducer.status.ask import DEFAULT_PORT, StatusError, ask_all

_PAUSE = 0.1


@dataclass(frozen=True)
class Counted:
    """Of a run, over all reducers; ``silent``: why a reducer's counters are not among them."""

    taken: int
    given: int
    silent: Mapping[str, str]


def metrics_addresses(reducers: Sequence[str]) -> list[str]:
    """Where the counters of reducers at host:port are, unless somebody says otherwise."""
    hosts = (address.rpartition(":")[0] for address in reducers)
    return list(dict.fromkeys(f"{host}:{DEFAULT_PORT}" for host in hosts))


def count(addresses: Sequence[str], run: str, seconds: float) -> Counted:
    """What the reducers at these metrics addresses say of the run with this id now."""
    answers = dict(zip(addresses, ask_all(addresses, seconds), strict=True))
    silent = {a: str(answer) for a, answer in answers.items() if isinstance(answer, StatusError)}
    # Two addresses may name one reducer. Both clocks of its start tell which one it is.
    told = {
        (answer["started"], answer["started_at"]): answer
        for answer in answers.values()
        if not isinstance(answer, StatusError)
    }
    parts = [part for answer in told.values() for part in _parts(answer, run)]
    taken = sum(part["bytes_in"] for part in parts)
    given = sum(part["bytes_out"] for part in parts)
    return Counted(taken, given, silent)


def count_until(addresses: Sequence[str], run: str, least: int, seconds: float) -> Counted:
    """Counted once so many bytes came and went, or when the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        counted = count(addresses, run, seconds)
        if min(counted.taken, counted.given) >= least or time.monotonic() > deadline:
            return counted
        time.sleep(_PAUSE)


def _parts(answer: Mapping[str, Any], run: str) -> list[dict[str, Any]]:
    runs = (part for lane in answer["lanes"] for part in lane["report"]["runs"])
    return [part for part in runs if part["run_id"] == run]
