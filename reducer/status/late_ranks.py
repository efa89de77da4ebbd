"""Decides which ranks of a run are listed as late."""

from __future__ import annotations

from reducer.status.summary import RankStatus

# Of the run's time, the least share in which at least half of the ranks waited for a late rank.
LEAST_SHARE = 0.01
RANKS_SHOWN = 8


def is_late(rank: RankStatus) -> bool:
    """Whether the rank was waited for long enough, is disconnected, or is waited for now."""
    return rank.share >= LEAST_SHARE or bool(rank.disconnected_from) or rank.absent_from is not None
