"""A program that is connected to a Ray cluster of two nodes, and calls functions for a test."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.ranks import RunningRanks, Tell, start_ranks, values
from tests.support.ray_folder import ray_folder, ray_variables

_START_SECONDS = 150.0
# On a busy machine nodes and workers start slowly, and workers may be silent for long.
_PATIENCE = {
    "REDUCER_WORKER_SILENCE": "60",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200",
}


class Driver:
    """Calls functions in the program. ``folder`` is Ray's."""

    def __init__(self, ranks: RunningRanks, folder: Path) -> None:
        self._ranks = ranks
        self.folder = folder

    def call(self, function: Callable[..., Any], *args: Any, timeout: float = 150.0) -> Any:
        self._ranks.send(0, (function, args))
        value, trace = self._ranks.receive(0, timeout)
        assert not trace, trace
        return value


@contextmanager
def driver() -> Iterator[Driver]:
    """The program while the block runs."""
    with ray_folder() as folder, start_ranks(1, _drive, folder, talk=True, fresh=True) as ranks:
        ranks.receive(0, _START_SECONDS)
        yield Driver(ranks, folder)
        ranks.send(0)
        values(ranks.collect())


def _drive(rank: int, world: int, folder: Path, tell: Tell) -> None:
    os.environ |= ray_variables(folder) | _PATIENCE
    import ray  # only where it is installed, and with these variables
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address)
        tell("ready")
        while (call := tell.hear()) is not None:
            function, args = call
            try:
                tell((function(*args), ""))
            except Exception:
                tell((None, traceback.format_exc()))
    finally:
        ray.shutdown()
        cluster.shutdown()
