"""The state that the parts of one table share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reducer_client.errors import ReducerError
from reducer_client.tables.lanes import Lanes
from reducer_client.tables.layout import Layout
from reducer_client.tables.shared import Shared
from reducer_client.tables.staging import StagingPool
from reducer_client.tables.tally import Tally


@dataclass
class TableContext:
    """``seen``: the newest version of each shard that this worker has heard of.

    ``failure``: the error that has ended the table, though not the parameter server.
    """

    shared: Shared
    lanes: Lanes
    layout: Layout
    worker: int
    seen: list[int] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    failure: ReducerError | None = None
    pool: StagingPool = field(init=False)

    def __post_init__(self) -> None:
        layout = self.layout
        self.seen = [0] * layout.shards
        self.pool = StagingPool(self.shared, layout.count, layout.name, self.check)

    def check(self) -> None:
        """Raises the error of a table that has failed. The caller holds the lock."""
        if self.failure is not None:
            raise self.failure

    def wait_until(
        self,
        is_done: Callable[[], bool],
        timeout: float | None,
        describe: Callable[[float], str],
    ) -> None:
        """Wait as `Shared.wait_until` does. Raises the table's error too, if the table failed."""

        def look() -> bool:
            self.check()
            return is_done()

        self.shared.wait_until(look, timeout, describe)

    def note_versions(self, shards: Sequence[int], version: int) -> None:
        for shard in shards:
            self.seen[shard] = max(self.seen[shard], version)
