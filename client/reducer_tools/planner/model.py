"""The model of an all-reduce where the NICs are the limit: reducers beside a ring.

N is the bytes of one worker's array, W the workers, R the reducers, BW and BW_r the rates of their
NICs, full duplex. A ring moves 2(W-1)/W x N through each worker's NIC, each way. With reducers N
passes each worker's NIC, each way, and W x N is spread over R reducers; the slower of the two
decides. Rates are Gbit/s (10^9 bits), sizes bytes, times seconds.

Not in the model: latency, the filling of the pipeline (some R chunks: design for arrays of MiB) and
cores that are full. `tests/unit/planner/test_planner_measured.py` compares it with measurements.
"""

from __future__ import annotations

import math
from fractions import Fraction

# Of every Ethernet frame of 1514 bytes (MTU 1500) TCP with timestamps leaves 1448 for data.
HEADER_OVERHEAD = 1.045
# Far beyond any cluster, and small enough that no product of them leaves the range of a float.
_MOST_WORKERS = 10**6
_MOST_REDUCERS = 10**18
_LEAST, _MOST = 1e-12, 1e18


def ring_seconds(bytes: int, workers: int, worker_gbps: float) -> float:
    """Time of a ring: 2(W-1)/W x N / BW. One worker has nothing to move.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    2009; nccl-tests, doc/PERFORMANCE.md, has the same factor.
    """
    return ring_factor(workers) * _wire_seconds(bytes, "worker_gbps", worker_gbps)


def reducer_seconds(
    bytes: int, workers: int, worker_gbps: float, reducers: int, reducer_gbps: float
) -> float:
    """Time of R reducers: max(N / BW, W x N / (R x BW_r)).

    A worker sends N and receives N; the reducers together receive W x N and send as much. Plain
    parameter servers in section 2 of the paper that `mixed_seconds` names, with BW_r beside BW.
    """
    _check_workers(workers)
    _check_reducers(reducers)
    at_workers = _wire_seconds(bytes, "worker_gbps", worker_gbps)
    at_reducers = _wire_seconds(bytes, "reducer_gbps", reducer_gbps) * workers / reducers
    return max(at_workers, at_reducers)


def mixed_seconds(
    bytes: int, workers: int, worker_gbps: float, reducers: int, reducer_gbps: float
) -> float:
    """The optimum with R reducers, where workers sum a part of the array themselves.

    2W(W-1) / (W^2 + kW - 2k) x N / BW: Jiang and others, "A unified architecture for accelerating
    distributed DNN training in heterogeneous GPU/CPU clusters" (OSDI 2020), section 4.1. Its k
    machines have the workers' NIC; others count by their rate, k = min(W, R x BW_r / BW). k = 0 is
    a ring, k = W is N / BW. Here reducers sum everything: this is what that leaves on the table.
    """
    _check_workers(workers)
    _check_reducers(reducers)
    once = _wire_seconds(bytes, "worker_gbps", worker_gbps)
    if workers == 1:
        return 0.0
    k = min(float(workers), reducers / float(_rate_ratio(worker_gbps, reducer_gbps)))
    return 2 * workers * (workers - 1) / (workers**2 + k * workers - 2 * k) * once


def reducers_needed(workers: int, worker_gbps: float, reducer_gbps: float) -> int:
    """The least R that is never the limit: the reducers' egress covers that of the workers.

    The rule of Vertex AI's "Distributed training", and its two examples:

    >>> reducers_needed(5, 100, 32), reducers_needed(8, 100, 32)
    (16, 25)
    """
    _check_workers(workers)
    return math.ceil(workers * _rate_ratio(worker_gbps, reducer_gbps))


def reducers_to_beat_ring(workers: int, worker_gbps: float, reducer_gbps: float) -> int | None:
    """The least R that is faster than a ring; None for one or two workers, where none can be.

    W / (R x BW_r) < 2(W-1) / (W x BW) holds from R x BW_r > W^2 / (2(W-1)) x BW: at W = 4 the
    reducers need together more than 2.67 times the rate of one worker.

    >>> reducers_to_beat_ring(4, 1, 1), reducers_to_beat_ring(2, 1, 100)
    (3, None)
    """
    _check_workers(workers)
    ratio = _rate_ratio(worker_gbps, reducer_gbps)
    if workers <= 2:  # a ring of two moves N each way too
        return None
    return math.floor(Fraction(workers**2, 2 * (workers - 1)) * ratio) + 1


def ring_factor(workers: int) -> float:
    """2(W-1)/W: how often a ring moves an array through each NIC, each way."""
    _check_workers(workers)
    return 2 * (workers - 1) / workers


def ring_gbps(bytes: int, workers: int, seconds: float) -> float:
    """The worker rate at which a ring takes ``seconds``; on faster NICs the ring is faster."""
    check_positive("seconds", seconds)
    return ring_factor(workers) * _wire_seconds(bytes, "worker_gbps", 1.0) / seconds


def _wire_seconds(bytes: int, field: str, gbps: float) -> float:
    check_positive("bytes", bytes)
    check_positive(field, gbps)
    return bytes * HEADER_OVERHEAD * 8 / (gbps * 1e9)


def _rate_ratio(worker_gbps: float, reducer_gbps: float) -> Fraction:
    """BW / BW_r, exact in the decimals as written: 2.1 / 0.3 is 7, not 7 and a bit."""
    check_positive("worker_gbps", worker_gbps)
    check_positive("reducer_gbps", reducer_gbps)
    return Fraction(str(worker_gbps)) / Fraction(str(reducer_gbps))


def _check_workers(workers: int) -> None:
    check_count("workers", workers, _MOST_WORKERS)


def _check_reducers(reducers: int) -> None:
    check_count("reducers", reducers, _MOST_REDUCERS)


def check_count(field: str, count: int, most: int) -> None:
    """Raise ValueError with field, expected and got unless ``count`` is from 1 to ``most``."""
    if count != int(count) or count < 1:
        raise ValueError(f"{field}: expected a whole number from 1, got {count}")
    if count > most:
        raise ValueError(f"{field}: expected at most {most:,}, got {_shorten(count)}")


def check_positive(field: str, value: float) -> None:
    """Raise ValueError with field, expected and got for what is no rate, size or time."""
    if not 0 < value < math.inf:
        raise ValueError(f"{field}: expected a number above 0, got {value:g}")
    if not _LEAST <= value <= _MOST:
        got = _shorten(value)
        raise ValueError(f"{field}: expected a number from {_LEAST:g} to {_MOST:g}, got {got}")


def _shorten(value: float) -> str:
    """Of a number of any size: some thousand digits are more than str may write."""
    return f"{value:g}" if value < 1e300 else "more than 1e300"
