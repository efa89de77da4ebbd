"""Stall checks: which ranks have not announced a tensor that other ranks wait for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from reducer_client.horovod.config import HorovodSettings
from reducer_client.horovod.errors import HorovodInternalError

logger = logging.getLogger("reducer_client.horovod")

_SHOWN = 10


class StallCheck:
    """Warns once of each submission that waits too long, and raises after the shutdown time."""

    def __init__(self, settings: HorovodSettings) -> None:
        self._warn_after = settings.stall_check or float("inf")
        self._end_after = settings.stall_shutdown or float("inf")
        self._first_after = min(self._warn_after, self._end_after)
        self._warned: set[tuple[str, float]] = set()

    def next_check(self, waiting: Iterable[tuple[str, float]]) -> float:
        """The time at which `check` must run next, given (name, time of submission) pairs."""
        limits = (
            since + (self._end_after if (name, since) in self._warned else self._first_after)
            for name, since in waiting
        )
        return min(limits, default=float("inf"))

    def check(self, now: float, waiting: Sequence[tuple[str, float, list[int]]]) -> None:
        """Warn of late submissions.

        Raises HorovodInternalError after the shutdown time.

        Args:
            waiting: (name, time of submission, missing ranks) of what this rank has announced.
        """
        self._warned &= {row[:2] for row in waiting}
        late = [row for row in waiting if now - row[1] >= self._warn_after]
        new = [row for row in late if row[:2] not in self._warned]
        if new:
            self._warned.update(row[:2] for row in new)
            logger.warning("waiting for more than %g s: %s", self._warn_after, describe(new))
        over = [row for row in waiting if now - row[1] >= self._end_after]
        if over:
            raise HorovodInternalError(
                f"not finished after {self._end_after:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS): "
                f"{describe(over)}; do all ranks submit these names?",
                rank=over[0][2][0] if len(over[0][2]) == 1 else None,
                key=over[0][0],
                reason="stalled",
            )


def describe(rows: Sequence[tuple[str, float, list[int]]]) -> str:
    """A text with each set of missing ranks and its tensors."""
    by_ranks: dict[tuple[int, ...], list[str]] = {}
    for name, _, ranks in rows:
        by_ranks.setdefault(tuple(ranks), []).append(name)
    texts = []
    for missing, names in by_ranks.items():
        who = f"missing ranks {', '.join(map(str, missing))}" if missing else "ranks not known yet"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        texts.append(f"{who}: {', '.join(names[:_SHOWN])}{more}")
    return "; ".join(texts)
