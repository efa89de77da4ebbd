"""Limits what each job may write to the log of a lane, at all levels but DEBUG.

Law: a job neither fills a disk nor hides what is said of another one. What is of no job, or of
strangers before they have named one, shares too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from reducer.log import RateLimit

# A line counts once for so many characters: the texts of errors are the workers'.
_CHARACTERS = 256
# Of a job: so many at once, as its groups begin by hundreds; then 4 a second, 90 MB a day.
BURST = 200
_INTERVAL = 0.25
# Of all jobs: in mode open strangers have as many names as they like.
_ALL_BURST = 2_000
_ALL_INTERVAL = 0.025
_MAX_JOBS = 1_024  # that are known; the one whose last line is oldest makes room


class LogShares:
    def __init__(self) -> None:
        self._of: OrderedDict[object, RateLimit] = OrderedDict()
        self._all = RateLimit(_ALL_INTERVAL, _ALL_BURST)

    def admit(self, about: Mapping[str, object], characters: int, now: float) -> int | None:
        """How many lines of the job were held back before this one; None: hold this one, too."""
        share = self._share(about.get("job"))
        cost = 1 + characters // _CHARACTERS
        held = share.admit(now, cost)
        if held is not None and self._all.admit(now, cost) is None:
            share.hold(held + 1)
            return None
        return held

    def _share(self, job: object) -> RateLimit:
        share = self._of.get(job)
        if share is None:
            if len(self._of) >= _MAX_JOBS:
                self._of.popitem(last=False)
            share = self._of[job] = RateLimit(_INTERVAL, BURST)
        self._of.move_to_end(job)
        return share
