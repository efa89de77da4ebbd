"""The model of an all-reduce where the NICs are the limit: reducers beside a ring.

N is the bytes of one worker's array, W the workers, R the reducers, BW and BW_r the rates of their
NICs, full duplex. A ring moves 2(W-1)/W x N through each worker's NIC, each way. With reducers N
passes each worker's NIC, each way, and W x N is spread over R reducers; the slower of the two
decides. Rates are Gbit/s (10^9 bits), sizes bytes, times seconds.
"""

from __future__ import annotations

import math
from fractions import Fraction

# Of every Ethernet frame of 1514 bytes (MTU 1500) TCP with timestamps leaves 1448 for data.
HEADER_OVERHEAD = 1.045


def ring_seconds(bytes: int, workers: int, worker_gbps: float) -> float:
    """Time of a ring: 2(W-1)/W x N / BW. One worker has nothing to move."""
    return ring_factor(workers) * _wire_seconds(bytes, "worker_gbps", worker_gbps)


def reducer_seconds(
    bytes: int, workers: int, worker_gbps: float, reducers: int, reducer_gbps: float
) -> float:
    """Time of R reducers: max(N / BW, W x N / (R x BW_r))."""
    _check_count("workers", workers)
    _check_count("reducers", reducers)
    at_workers = _wire_seconds(bytes, "worker_gbps", worker_gbps)
    at_reducers = _wire_seconds(bytes, "reducer_gbps", reducer_gbps) * workers / reducers
    return max(at_workers, at_reducers)


def reducers_needed(workers: int, worker_gbps: float, reducer_gbps: float) -> int:
    """The least R that is never the limit: the reducers' egress covers that of the workers.

    >>> reducers_needed(5, 100, 32), reducers_needed(8, 100, 32)
    (16, 25)
    """
    _check_count("workers", workers)
    return math.ceil(workers * _rate_ratio(worker_gbps, reducer_gbps))


def reducers_to_beat_ring(workers: int, worker_gbps: float, reducer_gbps: float) -> int | None:
    """The least R that is faster than a ring; None for one or two workers, where none can be.

    W / (R x BW_r) < 2(W-1) / (W x BW) holds from R x BW_r > W^2 / (2(W-1)) x BW: at W = 4 the
    reducers need together more than 2.67 times the rate of one worker.

    >>> reducers_to_beat_ring(4, 1, 1), reducers_to_beat_ring(2, 1, 100)
    (3, None)
    """
    _check_count("workers", workers)
    ratio = _rate_ratio(worker_gbps, reducer_gbps)
    if workers <= 2:  # a ring of two moves N each way too
        return None
    return math.floor(Fraction(workers**2, 2 * (workers - 1)) * ratio) + 1


def ring_factor(workers: int) -> float:
    """2(W-1)/W: how often a ring moves an array through each NIC, each way."""
    _check_count("workers", workers)
    return 2 * (workers - 1) / workers


def ring_gbps(bytes: int, workers: int, seconds: float) -> float:
    """The worker rate at which a ring takes ``seconds``; on faster NICs the ring is faster."""
    _check_positive("seconds", seconds)
    return ring_factor(workers) * _wire_seconds(bytes, "worker_gbps", 1.0) / seconds


def _wire_seconds(bytes: int, field: str, gbps: float) -> float:
    _check_positive("bytes", bytes)
    _check_positive(field, gbps)
    return bytes * HEADER_OVERHEAD * 8 / (gbps * 1e9)


def _rate_ratio(worker_gbps: float, reducer_gbps: float) -> Fraction:
    """BW / BW_r, exact in the decimals as written: 2.1 / 0.3 is 7, not 7 and a bit."""
    _check_positive("worker_gbps", worker_gbps)
    _check_positive("reducer_gbps", reducer_gbps)
    return Fraction(str(worker_gbps)) / Fraction(str(reducer_gbps))


def _check_count(field: str, count: int) -> None:
    if count != int(count) or count < 1:
        raise ValueError(f"{field}: expected a whole number from 1, got {count}")


def _check_positive(field: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{field}: expected a number above 0, got {value:g}")
