"""One rank of a measurement: joins the job, measures every size and checks every result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import reducer_client
from reducer.wire.codes import NOT_IN_NUMPY
from reducer_client import Group, Work
from reducer_client.config import Settings
from reducer_tools.bench.events import Event, Facts, Row, Turn
from reducer_tools.bench.pattern import Pattern, start
from reducer_tools.bench.sweep import Sweep

Array = npt.NDArray[Any]
Emit = Callable[[Event], None]

# Seconds between two progress events, because drawing them takes time from ranks on this host.
_PROGRESS_INTERVAL = 0.25


class OptionsDifferError(ValueError):
    """Ranks were started with different options."""


def measure(settings: Settings, sweep: Sweep, emit: Emit) -> int:
    """Measure as the rank in ``settings``. Every rank emits the same rows.

    Returns:
        The number of wrong elements over all ranks, the same on every rank.

    Raises:
        ReducerError: a rank or a reducer was lost. The text names it.
        OptionsDifferError: raised on every rank if their options differ.
        ValueError: a size has less than one element for each rank's part.
    """
    counts = sweep.counts(settings.world_size)
    with reducer_client.connect(
        settings.addresses,
        job=settings.job,
        rank=settings.rank,
        world_size=settings.world_size,
        run_id=settings.run_id,
        connect_timeout=settings.connect_timeout,
        chunk_table=settings.chunk_table,
    ) as group:
        _compare_options(group, sweep)
        emit(_find_facts(group, settings, sweep))
        rank = _Rank(group, sweep, emit)
        return sum(rank.measure(count) for count in counts)


class _Rank:
    """Measures one size after another."""

    def __init__(self, group: Group, sweep: Sweep, emit: Emit) -> None:
        self._group = group
        self._sweep = sweep
        self._emit = emit
        self._pattern = Pattern(sweep, group.world_size)
        self._shown = time.monotonic()

    def measure(self, count: int) -> int:
        """Measure ``count`` elements, emit the row and return the number of wrong elements."""
        held = self._elements_sent(count)
        given = self._pattern.sent(self._group.rank, held)
        result = np.empty(self._shape_received(count), given.dtype)
        seconds: list[float] = []
        wrong = 0
        before = self._moved()
        for turn in range(self._sweep.turns):
            if turn == self._sweep.warmup:
                before = self._moved()
            seconds.append(self._time(given[start(turn) : start(turn) + held], result))
            if self._sweep.check:
                flat = result.reshape(-1)
                wrong += self._pattern.count_wrong(flat, self._group.rank, turn)
            self._show_turn(count, turn + 1)
        moved = self._moved() - before
        row = self._gather(count, seconds[self._sweep.warmup :], moved, wrong)
        self._emit(row)
        return row.wrong or 0

    def _time(self, given: Array, result: Array) -> float:
        """Seconds of one iteration, counted from a common barrier."""
        self._group.barrier()
        started = time.perf_counter()
        self._submit(given, result).wait()
        return time.perf_counter() - started

    def _submit(self, given: Array, result: Array) -> Work[Any]:
        group, sweep = self._group, self._sweep
        if sweep.collective == "broadcast":
            return group.broadcast(given, key="bench", out=result)
        if sweep.collective == "all_gather":
            return group.all_gather(given, key="bench", out=result)
        if sweep.collective == "reduce_scatter":
            return group.reduce_scatter(given, sweep.op, "bench", result, sweep.sent_as)
        dtype = sweep.dtype if sweep.held in NOT_IN_NUMPY else None
        return group.all_reduce(given, sweep.op, "bench", result, sweep.sent_as, dtype=dtype)

    def _elements_sent(self, count: int) -> int:
        parts = self._group.world_size if self._sweep.collective == "reduce_scatter" else 1
        return count * parts

    def _shape_received(self, count: int) -> tuple[int, ...]:
        gathers = self._sweep.collective == "all_gather"
        return (self._group.world_size, count) if gathers else (count,)

    def _moved(self) -> Array:
        """(bytes sent, bytes received) so far."""
        stats = self._group.stats()
        return np.array([stats["bytes_sent"], stats["bytes_received"]], np.float64)

    def _gather(self, count: int, seconds: list[float], moved: Array, wrong: int) -> Row:
        """Gather the figures of all ranks into one row."""
        mine = np.array([*seconds, *(moved / len(seconds)), wrong])
        by_rank = self._group.all_gather(mine, key="bench/figures").wait()
        slowest = by_rank.max(axis=0)
        world = self._group.world_size
        return Row(
            bytes=self._sweep.row_bytes(count, world),
            count=count,
            seconds=tuple(slowest[:-3].tolist()),
            bus_factor=self._sweep.bus_factor(world),
            sent=float(slowest[-3]),
            received=float(slowest[-2]),
            wrong=int(by_rank[:, -1].sum()) if self._sweep.check else None,
        )

    def _show_turn(self, count: int, done: int) -> None:
        now = time.monotonic()
        if now - self._shown >= _PROGRESS_INTERVAL:
            self._shown = now
            size = self._sweep.row_bytes(count, self._group.world_size)
            self._emit(Turn(size, done, self._sweep.turns))


def _compare_options(group: Group, sweep: Sweep) -> None:
    mine = np.frombuffer(sweep.digest(), np.uint8)
    by_rank = group.all_gather(mine, key="bench/options").wait()
    others = [rank for rank, theirs in enumerate(by_rank) if not np.array_equal(theirs, by_rank[0])]
    if others:
        raise OptionsDifferError(
            f"rank(s) {', '.join(map(str, others))} were started with other options than rank 0; "
            "expected the same sizes, collective, types and counts on every rank"
        )


def _find_facts(group: Group, settings: Settings, sweep: Sweep) -> Facts:
    lanes = Counter(str(lane["reducer"]) for lane in group.stats()["reducers"])
    return Facts(
        sweep,
        group.world_size,
        settings.addresses,
        tuple(lanes[address] for address in settings.addresses),
        settings.chunk_table,
    )
