"""Pulls of whole tables: which shards to ask for, and how long to wait for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from reducer_client.tables.layout import Vector
from reducer_client.tables.modes import SSP
from reducer_client.tables.pulls import Pull
from reducer_client.tables.table_state import TableState


class Reads:
    """The caller of each method holds the lock."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self._table = state.context
        self._layout = state.context.layout
        mode = state.description.mode
        self._bound = mode.bound if isinstance(mode, SSP) else None

    def into(self, into: Sequence[Vector], limit: float, exact: int | None = None) -> list[int]:
        """Pull into vectors. Returns the versions of the shards.

        ``exact``: the version to pull into one vector; a shard that does not have it any more gives
        its newest.

        Raises RoundTimeoutError after ``limit`` seconds, and the error that has ended the table.
        """
        deadline = time.monotonic() + limit

        def describe(_: float) -> str:
            return self._describe(limit)

        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        table, steps = self._table, self._state.steps
        table.wait_until(lambda: self._state.may_pull, left(), describe)
        number = table.lanes.next_number()
        pull = Pull(table.shared, self._layout, number, into, table.worker, exact is not None)
        newest = 0 if steps is None else steps.least_version
        self._ask(pull, newest if exact is None else exact)
        try:
            table.wait_until(lambda: pull.done, left(), describe)
            one_version = steps is not None and exact is None
            while one_version and (most := max(pull.versions)) > min(pull.versions):
                self._ask(pull, most)
                table.wait_until(lambda: pull.done, left(), describe)
        except BaseException:
            table.lanes.give_up(self._layout.key, pull.number)
            pull.wait_for_writers()
            raise
        return pull.versions

    def _ask(self, pull: Pull, least_version: int) -> None:
        """Ask for all shards the first time, then only for shards older than the version."""
        least_clock = 0 if self._bound is None else max(0, self._state.clock - self._bound)
        for partition in self._state.partitions:
            wanted = self._layout.by_partition[partition]
            if pull.was_asked:
                wanted = tuple(each for each in wanted if pull.versions[each] < least_version)
            self._table.lanes.put(partition, pull.items(wanted, least_clock, least_version))
        pull.was_asked = True

    def _describe(self, limit: float) -> str:
        state = self._state
        reasons = []
        if not state.is_ready and not state.is_reader:
            reasons.append("first values have not come")
        if self._bound is not None:
            reasons.append(
                f"workers are more than {self._bound} clocks behind this one (clock "
                f"{state.clock}): do all call clock()?"
            )
        if state.steps is not None:
            reasons.append(f"step {state.steps.least_version} is not over: do all workers push?")
        why = f"; perhaps {'; or '.join(reasons)}" if reasons else ""
        return f"table {self._layout.name!r}: not pulled within {limit:g} s{why}"
