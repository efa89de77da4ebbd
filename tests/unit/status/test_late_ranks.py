"""Which ranks of a run are listed as late."""

from __future__ import annotations

import pytest

from reducer.status.late_ranks import LEAST_SHARE, is_late
from reducer.status.summary import RankStatus, Wait


@pytest.mark.parametrize(
    ("rank", "late"),
    [
        (RankStatus(0, waited=1.0, share=LEAST_SHARE / 2), False),
        (RankStatus(0, waited=1.0, share=LEAST_SHARE), True),
        (RankStatus(0, disconnected_from=["a:1"]), True),
        (RankStatus(0, absent_from=Wait("key", 3, 0.5)), True),
    ],
)
def test_a_rank_is_late_for_each_reason_alone(rank: RankStatus, late: bool) -> None:
    assert is_late(rank) == late
