"""The NCCL plugin with buffers right beside guard pages, which fault on any access."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.arrays import expected, sample
from tests.support.nccl_job import run
from tests.support.nccl_tables import CollNet, Net
from tests.support.pages import Fenced
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import Tell
from tests.support.reducers import Reducers

Array = npt.NDArray[Any]
COUNTS = (1, 3, 4097, 65_537)  # elements: less than a page; just over a page, over chunks
TYPES = ("uint8", "float16", "float32", "int64")


@contextmanager
def _given(values: Array, at_end: bool) -> Iterator[Array]:
    """A read-only copy beside a guard page."""
    with Fenced(values, at_end=at_end) as fenced:
        fenced.forbid_writing()
        yield fenced.array


def _all_reduces(coll: CollNet, comm: Any, rank: int, world: int) -> None:
    for type_, count, at_end in product(TYPES, COUNTS, (True, False)):
        parts = [sample(np.dtype(type_), count, (type_, count, r)) for r in range(world)]
        total = expected("sum", parts).tobytes()
        with (
            _given(parts[rank], at_end) as send,
            Fenced(np.zeros_like(send), at_end=at_end) as apart,
            Fenced(parts[rank], at_end=at_end) as within,
        ):
            for source, target in ((send, apart.array), (within.array, within.array)):
                request = coll.all_reduce(comm, source, target, type_, "sum")
                assert request is not None
                coll.wait(request)
                flushed = c_void_p(1)
                coll.call("iflush", comm, target.ctypes.data, target.nbytes, None, byref(flushed))
                assert flushed.value is None  # there is nothing to wait for
                assert target.tobytes() == total, (type_, count, at_end, source is target)


def _all_gather(coll: CollNet, comm: Any, rank: int, world: int, at_end: bool) -> None:
    per_rank, step = 4_099, 5_003  # bytes
    row = np.concatenate([sample(np.dtype(np.uint8), per_rank, ("row", r)) for r in range(world)])
    for begin in range(0, row.size, step):
        window = row[begin : begin + step]
        first, last = rank * per_rank, (rank + 1) * per_rank
        mine = row[max(begin, first) : min(begin + window.size, last)]
        with (
            _given(mine if mine.size else row[:1], at_end) as send,
            Fenced(np.zeros_like(window), at_end=at_end) as receive,
        ):
            coll.wait(coll.all_gather(comm, send, receive.array, per_rank, begin))
            assert receive.array.tobytes() == window.tobytes(), (begin, at_end)


def _reduce_scatter(coll: CollNet, comm: Any, rank: int, world: int, at_end: bool) -> None:
    count = 5_001  # elements of each rank
    parts = [sample(np.dtype(np.float32), count * world, ("sum", r)) for r in range(world)]
    total = expected("sum", parts)
    with (
        _given(parts[rank], at_end) as send,
        Fenced(np.zeros(count, np.float32), at_end=at_end) as receive,
    ):
        request = coll.reduce_scatter(comm, send, receive.array, 4 * count, 0, "float32", "sum")
        coll.wait(request)
        mine = total[rank * count : (rank + 1) * count]
        assert receive.array.tobytes() == mine.tobytes(), at_end


def _messages(net: Net) -> None:
    """Send messages over one connection; both ends are polled in turn."""
    handle, listen = net.listen()
    out = net.connect(handle)
    into = net.accept(listen)
    for size, spare, at_end in product((1, 4097, 1_000_001), (0, 7), (True, False)):
        values = sample(np.dtype(np.uint8), size, size)
        with (
            _given(values, at_end) as send,
            Fenced(np.zeros(size + spare, np.uint8), at_end=at_end) as receive,
        ):
            receiving, sending = net.receive(into, receive.array), net.send(out, send)
            assert receiving is not None and sending is not None
            sent = received = None
            while sent is None or received is None:
                sent = net.test(sending) if sent is None else sent
                received = net.test(receiving) if received is None else received
            assert (sent, received) == (size, size)
            assert receive.array[:size].tobytes() == values.tobytes()
            assert not receive.array[size:].any()
    net.close_send(out)
    net.close_receive(into)
    net.close_listen(listen)


def _beside_guards(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    _all_reduces(coll, comm, rank, world)
    for at_end in (True, False):
        _all_gather(coll, comm, rank, world, at_end)
        _reduce_scatter(coll, comm, rank, world, at_end)
    net = Net(NCCL_PLUGIN, 12)
    net.init()
    _messages(net)


def test_no_byte_beyond_a_buffer_is_read_or_written() -> None:
    with Reducers(2) as reducers:
        run(2, reducers.addresses, _beside_guards)
