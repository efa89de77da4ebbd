"""One rank of a trial: a process that calls the plugin's tables in NCCL's order.

The process sends the result of each step to its parent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from reducer_tools.nccl.structs import TYPES
from reducer_tools.nccl.tables import CollNet, NcclError, Net

# NCCL splits an all-reduce into requests of this size, with this number of requests in flight.
_REQUEST_BYTES = 2 << 20
_IN_FLIGHT = 8
_SUM_SECONDS = 60.0
SMALLEST = 4  # bytes of float32: one element of each type
# Sums of small integers are exact in every type. No chunk is a multiple of the pattern, so that a
# chunk at a wrong position has wrong values.
_PATTERN, _LARGEST = 17, 8
SUMMED = ("float32", "bfloat16")


@dataclass(frozen=True)
class RankSpec:
    """The task of a rank.

    ``net`` and ``coll`` are the versions of the tables, ``size`` the bytes of float32 to sum.
    """

    library: Path
    net: int
    coll: int
    rank: int
    ranks: int
    size: int


def payload(size: int) -> int:
    """Bytes that a rank sends for a `RankSpec` of this size: equally many elements of each type."""
    return size // 4 * (4 + 2)


@dataclass(frozen=True)
class StepResult:
    """The result of a step on one rank.

    Attributes:
        value: depends on the step.
        error: why the step failed; "" if it succeeded.
        ended: whether the process has ended.
        lines: the plugin's log lines so far, as (level, text).
    """

    step: str
    value: Any = None
    error: str = ""
    ended: bool = False
    lines: tuple[tuple[str, str], ...] = ()


def work(connection: Connection, spec: RankSpec) -> None:
    """The main function of the process. Between two steps it waits for the parent."""
    net, coll = Net(spec.library, spec.net), CollNet(spec.library, spec.coll)
    step = "init"

    def report(value: Any = None, error: str = "") -> None:
        connection.send(StepResult(step, value, error, lines=(*net.lines, *coll.lines)))

    try:
        _init(net, coll)
        report()
        step = "connect"
        handle, listening = coll.listen()
        report(handle)
        comm = coll.connect(connection.recv(), spec.rank, listening)
        coll.close_listen(listening)
        report()
        step = "all-reduce"
        connection.recv()
        report({dtype: _sum(coll, comm, spec, dtype) for dtype in SUMMED})
        connection.recv()
        step = "close"
        coll.close(comm)
        coll.finalize()
        net.finalize()
        report()
    except NcclError as error:
        report(error=f"{error.call} returned {error.result}")
    except (AssertionError, ValueError) as error:
        report(error=str(error))


def _init(net: Net, coll: CollNet) -> None:
    """Initialize the net, then CollNet. If the net declines, NCCL does not use CollNet either."""
    for table in (net, coll):
        table.init()
        if not table.devices():
            raise ValueError(f"{table.name} has no devices, so NCCL does not use it")


def _sum(coll: CollNet, comm: Any, spec: RankSpec, dtype: str) -> int:
    """All-reduce an array of this type in place and return the number of wrong elements."""
    array = _encode(_values(spec, [spec.rank]), dtype)
    expected = _encode(_values(spec, range(spec.ranks)), dtype)
    step = _REQUEST_BYTES // array.itemsize
    waiting = deque(array[at : at + step] for at in range(0, array.size, step))
    in_flight = deque[Any]()
    while waiting or in_flight:
        while waiting and len(in_flight) < _IN_FLIGHT:
            piece = waiting.popleft()
            in_flight.append(coll.all_reduce(comm, piece, piece, dtype, "sum"))
        coll.wait(in_flight.popleft(), _SUM_SECONDS)
    return int(np.count_nonzero(array != expected))


def _values(spec: RankSpec, ranks: Any) -> Any:
    at = np.arange(spec.size // 4)
    return sum((at * (rank + 3) + rank) % _PATTERN - _LARGEST for rank in ranks).astype(np.float32)


def _encode(values: Any, dtype: str) -> Any:
    """The bits of the values in this type, for an exact comparison."""
    assert dtype in TYPES
    bits = values.view(np.uint32)
    return bits if dtype == "float32" else (bits >> 16).astype(np.uint16)
