"""Limits what each job may write to the log of a lane, at all levels but DEBUG.

Law: a job can neither fill a disk nor hide the log lines of another job. Lines of no job, and lines
of strangers that have named no job yet, have a share as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from reducer.log import RateLimit

# A line counts once for each 256 characters: the texts of errors come from workers.
_CHARACTERS = 256
# Lines of one job: 200 at once, as its groups begin by hundreds; then 4 a second, 90 MB a day.
BURST = 200
_INTERVAL = 0.25
# Lines of all jobs: in mode open, strangers may invent any number of names.
_ALL_BURST = 2_000
_ALL_INTERVAL = 0.025
_MAX_JOBS = 1_024  # with a share; the job whose last line is oldest makes room


class LogShares:
    def __init__(self) -> None:
        self._of: OrderedDict[object, RateLimit] = OrderedDict()
        self._all = RateLimit(_ALL_INTERVAL, _ALL_BURST)

    def admit(self, about: Mapping[str, object], characters: int, now: float) -> int | None:
        """How many lines of the job were held back before this line; None: hold this line back."""
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
