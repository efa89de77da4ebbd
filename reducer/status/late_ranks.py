"""Decides which ranks of a run are listed as late."""

from __future__ import annotations

from reducer.status.summary import RankStatus

# A rank is late if at least half of the ranks waited for it during this share of the run's time.
LEAST_SHARE = 0.01
RANKS_SHOWN = 8


def is_late(rank: RankStatus) -> bool:
    """Whether the rank was waited for long enough, is disconnected, or is waited for now."""
    return rank.share >= LEAST_SHARE or bool(rank.disconnected_from) or rank.absent_from is not None
