"""How many dedicated reducers cover the workers' traffic, and how many alone beat a ring.

Both numbers follow from the model in `network_time`. `cost.break_even_ratio` says up to which price
reducers pay off.
"""

from __future__ import annotations

import math
from fractions import Fraction

from reducer_tools.planner.network_time import MOST_WORKERS, check_count, exact, rate_ratio


def reducers_needed(
    workers: int, worker_gbps: float, reducer_gbps: float, to_reducer: Fraction | None = None
) -> int:
    """The least number of reducers whose total egress covers the workers' total egress.

    More reducers gain nothing, and hosted reducers have no share beside this number.
    ``to_reducer``: Gbit/s of all connections between a worker and a reducer, which must cover the
    worker's egress as well; None if nothing limits them. Without this limit, this is the rule of
    Vertex AI's "Distributed training", with its two examples:

    >>> reducers_needed(5, 100, 32), reducers_needed(8, 100, 32)
    (16, 25)
    """
    check_count("workers", workers, MOST_WORKERS)
    needed = math.ceil(workers * rate_ratio(worker_gbps, reducer_gbps))
    return needed if to_reducer is None else max(needed, math.ceil(exact(worker_gbps) / to_reducer))


def reducers_to_beat_ring(
    workers: int, worker_gbps: float, reducer_gbps: float, to_reducer: Fraction | None = None
) -> int | None:
    """The least number of reducers that is faster than a ring without hosted ones.

    None for one or two workers, for whom no number is faster.
    W / (R x BW_r) < 2(W-1) / (W x BW) holds if R x BW_r > W^2 / (2(W-1)) x BW. For 4 workers, all
    reducers together need more than 2.67 times the rate of one worker. In the same way the
    connections of a worker need R x ``to_reducer`` > W / (2(W-1)) x BW (see `reducers_needed`).

    >>> reducers_to_beat_ring(4, 1, 1), reducers_to_beat_ring(2, 1, 100)
    (3, None)
    """
    check_count("workers", workers, MOST_WORKERS)
    ratio = rate_ratio(worker_gbps, reducer_gbps)
    if workers <= 2:  # a ring of two moves only N each way, like reducers
        return None
    share = Fraction(workers, 2 * (workers - 1))  # 1 / the factor of a ring
    least = math.floor(share * workers * ratio) + 1
    if to_reducer is None:
        return least
    return max(least, math.floor(share * exact(worker_gbps) / to_reducer) + 1)
