"""One rank of a trial: a process that goes NCCL's way through the tables, and says how it fares."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from reducer_tools.children import stay_with
from reducer_tools.nccl.layouts import TYPES
from reducer_tools.nccl.tables import CollNet, NcclError, Net

# As NCCL cuts an all-reduce: so many bytes at a time, so many of them in flight.
_REQUEST_BYTES = 2 << 20
_IN_FLIGHT = 8
_SUM_SECONDS = 60.0
SMALLEST = 4  # bytes; of them there is an element of each type
# Sums of small integers are exact in every type; the pattern fits no chunk, so a piece that went
# astray is seen.
_PATTERN, _LARGEST = 17, 8
SUMMED = ("float32", "bfloat16")


@dataclass(frozen=True)
class Place:
    """Of a rank: which library and tables, which rank of how many, bytes of float32 to sum."""

    library: Path
    net: int
    coll: int
    rank: int
    ranks: int
    size: int


def payload(size: int) -> int:
    """Bytes that a rank sends, for a `Place` of this size: as many elements of each type."""
    return size // 4 * (4 + 2)


@dataclass(frozen=True)
class Said:
    """What a rank came to: the value of a step, or why it goes no further; `ended`: its process."""

    step: str
    value: Any = None
    error: str = ""
    ended: bool = False
    lines: tuple[tuple[str, str], ...] = ()


def work(connection: Connection, parent: int, place: Place) -> None:
    """Step after step; between them it waits for the parent, which counts bytes meanwhile."""
    stay_with(parent)
    net, coll = Net(place.library, place.net), CollNet(place.library, place.coll)
    step = "init"

    def say(value: Any = None, error: str = "") -> None:
        connection.send(Said(step, value, error, lines=(*net.lines, *coll.lines)))

    try:
        _init(net, coll)
        say()
        step = "connect"
        handle, listening = coll.listen()
        say(handle)
        comm = coll.connect(connection.recv(), place.rank, listening)
        coll.close_listen(listening)
        say()
        step = "all-reduce"
        connection.recv()
        say({dtype: _sum(coll, comm, place, dtype) for dtype in SUMMED})
        connection.recv()
        step = "close"
        coll.close(comm)
        coll.finalize()
        net.finalize()
        say()
    except NcclError as error:
        say(error=f"{error.call} returned {error.result}")
    except (AssertionError, ValueError) as error:
        say(error=str(error))


def _init(net: Net, coll: CollNet) -> None:
    """The net comes first: where it declines, NCCL drops CollNet, too."""
    for table in (net, coll):
        table.init()
        if not table.devices():
            raise ValueError(f"{table.name} has no devices, so NCCL does not take it")


def _sum(coll: CollNet, comm: Any, place: Place, dtype: str) -> int:
    """All-reduce an array of the type in place; the number of wrong elements."""
    array = _encode(_values(place, [place.rank]), dtype)
    expected = _encode(_values(place, range(place.ranks)), dtype)
    step = _REQUEST_BYTES // array.itemsize
    waiting = deque(array[at : at + step] for at in range(0, array.size, step))
    in_flight = deque[Any]()
    while waiting or in_flight:
        while waiting and len(in_flight) < _IN_FLIGHT:
            piece = waiting.popleft()
            in_flight.append(coll.all_reduce(comm, piece, piece, dtype, "sum"))
        coll.wait(in_flight.popleft(), _SUM_SECONDS)
    return int(np.count_nonzero(array != expected))


def _values(place: Place, ranks: Any) -> Any:
    at = np.arange(place.size // 4)
    return sum((at * (rank + 3) + rank) % _PATTERN - _LARGEST for rank in ranks).astype(np.float32)


def _encode(values: Any, dtype: str) -> Any:
    """As bits that compare exactly."""
    assert dtype in TYPES
    bits = values.view(np.uint32)
    return bits if dtype == "float32" else (bits >> 16).astype(np.uint16)
