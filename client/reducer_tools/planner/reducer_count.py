"""How many reducers cover the workers' traffic, and how many beat a ring.

Both numbers follow from the model in `network_time`. `cost.break_even_ratio` says up to which price
reducers pay off.
"""

from __future__ import annotations

import math
from fractions import Fraction

from reducer_tools.planner.network_time import MOST_WORKERS, check_count, rate_ratio


def reducers_needed(workers: int, worker_gbps: float, reducer_gbps: float) -> int:
    """The least number of reducers whose total egress covers the workers' total egress.

    This is the rule of Vertex AI's "Distributed training", with its two examples:

    >>> reducers_needed(5, 100, 32), reducers_needed(8, 100, 32)
    (16, 25)
    """
    check_count("workers", workers, MOST_WORKERS)
    return math.ceil(workers * rate_ratio(worker_gbps, reducer_gbps))


def reducers_to_beat_ring(workers: int, worker_gbps: float, reducer_gbps: float) -> int | None:
    """The least number of reducers that is faster than a ring; None for one or two workers.

    W / (R x BW_r) < 2(W-1) / (W x BW) holds if R x BW_r > W^2 / (2(W-1)) x BW. For 4 workers, all
    reducers together need more than 2.67 times the rate of one worker.

    >>> reducers_to_beat_ring(4, 1, 1), reducers_to_beat_ring(2, 1, 100)
    (3, None)
    """
    check_count("workers", workers, MOST_WORKERS)
    ratio = rate_ratio(worker_gbps, reducer_gbps)
    if workers <= 2:  # a ring of two moves only N each way, like reducers
        return None
    return math.floor(Fraction(workers**2, 2 * (workers - 1)) * ratio) + 1
