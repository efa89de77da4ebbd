"""Reads the reducers' byte counters of one run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reducer.status.ask import DEFAULT_PORT, StatusError, ask_all

_PAUSE = 0.1


@dataclass(frozen=True)
class Counted:
    """The byte counters of a run, summed over all reducers.

    ``taken`` counts bytes that the reducers received, ``given`` bytes that they sent. ``silent``
    has the error of each reducer that did not answer.
    """

    taken: int
    given: int
    silent: Mapping[str, str]


def metrics_addresses(reducers: Sequence[str]) -> list[str]:
    """The default metrics addresses of reducers at host:port."""
    hosts = (address.rpartition(":")[0] for address in reducers)
    return list(dict.fromkeys(f"{host}:{DEFAULT_PORT}" for host in hosts))


def count(addresses: Sequence[str], run: str, seconds: float) -> Counted:
    """Ask the reducers at these metrics addresses for their counters of the run with this id."""
    answers = dict(zip(addresses, ask_all(addresses, seconds), strict=True))
    silent = {a: str(answer) for a, answer in answers.items() if isinstance(answer, StatusError)}
    # Two addresses may be the same reducer. The two start times identify a reducer.
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
    """Ask until both counters have reached ``least`` bytes, or until ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    while True:
        counted = count(addresses, run, seconds)
        if min(counted.taken, counted.given) >= least or time.monotonic() > deadline:
            return counted
        time.sleep(_PAUSE)


def _parts(answer: Mapping[str, Any], run: str) -> list[dict[str, Any]]:
    runs = (part for lane in answer["lanes"] for part in lane["report"]["runs"])
    return [part for part in runs if part["run_id"] == run]
