"""Reads the reducers' byte counters of one run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reducer.status.ask import ask_all

_PAUSE = 0.1


@dataclass(frozen=True)
class Counted:
    """The byte counters of a run, summed over all reducers.

    ``received`` and ``sent`` are bytes, from the reducers' view. ``unanswered`` has the error of
    each reducer that did not answer.
    """

    received: int
    sent: int
    unanswered: Mapping[str, str]


def count(addresses: Sequence[str], run: str, seconds: float) -> Counted:
    """Ask the reducers at these addresses for their counters of the run with this id."""
    answers, unanswered = ask_all(addresses, seconds)
    # Two addresses may be the same reducer. The two start times identify a reducer.
    told = {(answer["started"], answer["started_at"]): answer for answer in answers.values()}
    parts = [part for answer in told.values() for part in _parts(answer, run)]
    received = sum(part["bytes_in"] for part in parts)
    sent = sum(part["bytes_out"] for part in parts)
    return Counted(received, sent, unanswered)


def count_until(addresses: Sequence[str], run: str, least: int, seconds: float) -> Counted:
    """Ask until received and sent bytes have reached ``least``, at most for ``seconds``.

    Returns the last counters.
    """
    deadline = time.monotonic() + seconds
    while True:
        counted = count(addresses, run, seconds)
        if min(counted.received, counted.sent) >= least or time.monotonic() > deadline:
            return counted
        time.sleep(_PAUSE)


def _parts(answer: Mapping[str, Any], run: str) -> list[dict[str, Any]]:
    runs = (part for lane in answer["lanes"] for part in lane["report"]["runs"])
    return [part for part in runs if part["run_id"] == run]
