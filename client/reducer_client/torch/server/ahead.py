"""Pulls that go on while the model computes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from reducer_client.tables import Table
from reducer_client.torch.server.exchange import Named, Vector


class Ahead:
    """At most one pull at a time, on a thread of its own."""

    def __init__(self, table: Table, parameters: Sequence[Named]) -> None:
        self._table = table
        self._values = Vector(parameters)
        self._pull: Future[tuple[int, ...]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reducer-pull")
        weakref.finalize(self, self._thread.shutdown, wait=False)

    def start(self) -> None:
        """Begin a pull, unless there is one under way or one whose values nobody has taken."""
        if self._pull is None:
            self._pull = self._thread.submit(_pull, self._table, self._values)

    def take(self, wait: bool = False) -> tuple[int, ...] | None:
        """Copy the values of a pull that has ended into the parameters.

        Returns their versions; None, and does nothing, if there is no such pull. Raises the error
        of the pull.
        """
        if self._pull is None or not (wait or self._pull.done()):
            return None
        pull, self._pull = self._pull, None
        versions = pull.result()
        self._values.scatter()
        return versions


def _pull(table: Table, values: Vector) -> tuple[int, ...]:
    table.pull(out=values.arrays)
    return table.base
