"""The model of an all-reduce that only the NICs limit, with reducers and with a ring.

Reducers are dedicated, on machines of their own, or hosted, on the machines of the workers.

N is the size of one worker's array in bytes, W the number of workers, R the number of dedicated
reducers, BW and BW_r the rates of their full-duplex NICs. A ring moves 2(W-1)/W x N bytes through
each worker's NIC, each way. With dedicated reducers alone, N bytes pass each worker's NIC, each
way, and W x N bytes are spread over R reducers. The slower of the two limits the rate. Hosted
reducers take the part of the array for which the dedicated ones have no time. Rates are in Gbit/s
(10^9 bits), sizes in bytes, times in seconds.

The model ignores latency, the time to fill the pipeline (about R chunks, so use arrays of MiB) and
the CPU. `tests/unit/planner/test_planner_measured.py` compares the model with measurements.
"""

from __future__ import annotations

import math
from fractions import Fraction

from reducer import shares

# An Ethernet frame of 1514 bytes (MTU 1500) carries 1448 bytes of data over TCP with timestamps.
HEADER_OVERHEAD = 1.045
# Limits far beyond any cluster, but small enough that no product exceeds the range of a float.
MOST_WORKERS = 10**6
MOST_REDUCERS = 10**18
_LEAST, _MOST = 1e-12, 1e18


def ring_seconds(bytes: int, workers: int, worker_gbps: float) -> float:
    """The time of a ring: 2(W-1)/W x N / BW, which is 0 for one worker.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    2009; nccl-tests, doc/PERFORMANCE.md, has the same factor.
    """
    return ring_factor(workers) * _wire_seconds(bytes, "worker_gbps", worker_gbps)


def reducer_seconds(
    bytes: int, workers: int, worker_gbps: float, reducers: int, reducer_gbps: float
) -> float:
    """The time with R dedicated reducers alone: max(N / BW, W x N / (R x BW_r)).

    A worker sends N bytes and receives N; all reducers together receive W x N and send W x N. The
    formula is the one for parameter servers in section 2 of the paper that `reducer.shares` cites,
    with a separate rate for reducers.
    """
    check_count("workers", workers, MOST_WORKERS)
    check_count("reducers", reducers, MOST_REDUCERS)
    at_workers = _wire_seconds(bytes, "worker_gbps", worker_gbps)
    at_reducers = _wire_seconds(bytes, "reducer_gbps", reducer_gbps) * workers / reducers
    return max(at_workers, at_reducers)


def mixed_seconds(
    bytes: int,
    workers: int,
    worker_gbps: float,
    reducers: int,
    reducer_gbps: float,
    to_reducer: Fraction | None = None,
) -> float:
    """The time with R dedicated reducers and a hosted one on each worker's machine; R may be 0.

    `reducer.shares` derives the formula. ``to_reducer`` is as for `dedicated_gbps`. As for a ring,
    nothing limits the connections between the workers.
    """
    time = least_time(workers, worker_gbps, reducers, reducer_gbps, to_reducer)
    return _wire_seconds(bytes, "worker_gbps", 1.0) * float(time)


def least_time(
    workers: int,
    worker_gbps: float,
    reducers: int,
    reducer_gbps: float,
    to_reducer: Fraction | None = None,
) -> Fraction:
    """`mixed_seconds` for an array of one Gbit, without headers; 0 for one worker."""
    check_count("workers", workers, MOST_WORKERS)
    check_count("reducers", reducers, MOST_REDUCERS, least=0)
    check_positive("worker_gbps", worker_gbps)
    rate = exact(worker_gbps)
    all_dedicated = reducers * dedicated_gbps(workers, reducer_gbps, to_reducer)
    return shares.least_time(workers, rate, workers * rate, all_dedicated)


def hosted_share(
    workers: int,
    worker_gbps: float,
    reducers: int,
    reducer_gbps: float,
    to_reducer: Fraction | None = None,
) -> Fraction:
    """The part of the array that all hosted reducers together sum in `mixed_seconds`."""
    time = least_time(workers, worker_gbps, reducers, reducer_gbps, to_reducer)
    rate = reducers * dedicated_gbps(workers, reducer_gbps, to_reducer)
    return max(Fraction(0), 1 - time * rate / workers)


def dedicated_gbps(
    workers: int, reducer_gbps: float, to_reducer: Fraction | None = None
) -> Fraction:
    """The rate of a dedicated reducer: its NIC's, or W x ``to_reducer`` if that is less.

    ``to_reducer``: Gbit/s of all connections between a worker and a reducer; None if nothing limits
    them. A share y of the array takes y N / ``to_reducer`` on these connections, and W y N / BW_r
    on the reducer's NIC.
    """
    check_positive("reducer_gbps", reducer_gbps)
    rate = exact(reducer_gbps)
    return rate if to_reducer is None else min(rate, workers * to_reducer)


def exchange_seconds(
    sent: float,
    received: float,
    workers: int,
    worker_gbps: float,
    reducers: int,
    reducer_gbps: float,
) -> float:
    """`mixed_seconds` if a contribution has ``sent`` bytes and its result ``received`` bytes.

    The shares of the reducers are as for equal sizes. A hosted reducer with the share x receives
    W-1 contributions of x and sends as many results of x, so that results load both directions of
    a NIC. With dedicated reducers alone, the larger of both sizes limits the rate.
    """
    hosted = float(hosted_share(workers, worker_gbps, reducers, reducer_gbps))
    others = hosted * (workers - 1) / workers
    outward = sent * (1 - hosted + others) + received * others
    inward = received * (1 - hosted + others) + sent * others
    at_workers = _wire_seconds(max(outward, inward), "worker_gbps", worker_gbps)
    if not reducers:
        return at_workers
    each = max(sent, received) * (1 - hosted) * workers / reducers
    at_reducers = _wire_seconds(each, "reducer_gbps", reducer_gbps) if each else 0.0
    return max(at_workers, at_reducers)


def ring_factor(workers: int) -> float:
    """2(W-1)/W: the number of times that a ring moves the array through each NIC, each way."""
    check_count("workers", workers, MOST_WORKERS)
    return 2 * (workers - 1) / workers


def ring_gbps(bytes: int, workers: int, seconds: float) -> float:
    """The rate of the workers' NICs at which a ring takes ``seconds``."""
    check_positive("seconds", seconds)
    return ring_factor(workers) * _wire_seconds(bytes, "worker_gbps", 1.0) / seconds


def _wire_seconds(bytes: float, field: str, gbps: float) -> float:
    check_positive("bytes", bytes)
    check_positive(field, gbps)
    return bytes * HEADER_OVERHEAD * 8 / (gbps * 1e9)


def rate_ratio(worker_gbps: float, reducer_gbps: float) -> Fraction:
    """BW / BW_r, computed exactly: 2.1 / 0.3 is exactly 7."""
    check_positive("worker_gbps", worker_gbps)
    check_positive("reducer_gbps", reducer_gbps)
    return exact(worker_gbps) / exact(reducer_gbps)


def exact(gbps: float) -> Fraction:
    """The exact value of the decimal digits, so that 3 x 0.1 covers 0.3."""
    return Fraction(str(gbps))


def check_count(field: str, count: int, most: int, least: int = 1) -> None:
    """Raise ValueError with field, expected and got unless ``least`` <= ``count`` <= ``most``."""
    if count != int(count) or count < least:
        raise ValueError(f"{field}: expected a whole number, {least} or more, got {count}")
    if count > most:
        raise ValueError(f"{field}: expected at most {most:,}, got {_shorten(count)}")


def check_positive(field: str, value: float) -> None:
    """Raise ValueError with field, expected and got for an invalid rate, size or time."""
    if not 0 < value < math.inf:
        raise ValueError(f"{field}: expected a number above 0, got {value:g}")
    if not _LEAST <= value <= _MOST:
        got = _shorten(value)
        raise ValueError(f"{field}: expected a number from {_LEAST:g} to {_MOST:g}, got {got}")


def _shorten(value: float) -> str:
    """A number as text. str() refuses integers of some thousand digits."""
    return f"{value:g}" if value < 1e300 else "more than 1e300"
