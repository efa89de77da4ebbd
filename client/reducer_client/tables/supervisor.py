"""Saves the tables of a job from time to time, in a thread of one worker.

Law: a save that fails is logged, and tried again when the next save is due. A failed save ends
neither the training nor the thread: the earlier checkpoints are whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reducer_client.errors import ClosedError, ReducerError
from reducer_client.tables.checkpoints import SavePolicy, TableImage, save
from reducer_client.tables.images import image_of
from reducer_client.tables.shared import logger
from reducer_client.tables.table import Table

_LOOK = 0.2  # seconds between two looks at the policy


class Supervisor:
    """``saved``: the step of the last checkpoint; None before the first."""

    def __init__(
        self,
        directory: Path,
        policy: SavePolicy,
        job: str,
        tables: Callable[[], Sequence[Table]],
    ) -> None:
        self.saved: int | None = None
        self._directory = directory
        self._policy = policy
        self._job = job
        self._tables = tables
        self._lock = threading.Lock()  # one save at a time
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tables save", daemon=True)

    def start(self) -> None:
        self._policy.saved(self._step(), time.monotonic())
        self._thread.start()

    def save(self) -> Path | None:
        """Save now. Returns the checkpoint; None if there is no table. Raises CheckpointError, or
        the errors of a pull.
        """
        with self._lock:
            images = [image_of(table) for table in self._tables()]
            if not images:
                return None
            step = step_of(images)
            path = save(self._directory, step, images, job=self._job, keep=self._policy.keep)
            self.saved = step
            self._policy.saved(step, time.monotonic())
            return path

    def stop(self) -> None:
        """End the thread. A save that is under way is completed."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(_LOOK):
            if not self._policy.due(self._step(), time.monotonic()):
                continue
            try:
                self.save()
            except ClosedError:
                return
            except (ReducerError, OSError) as error:
                logger.warning("the tables of job %r were not saved: %s", self._job, error)
                self._policy.saved(self._step(), time.monotonic())

    def _step(self) -> int:
        return max((table.version for table in self._tables()), default=0)


def step_of(images: Sequence[TableImage]) -> int:
    """The number of a checkpoint: the greatest version of its shards."""
    return max(max(image.state["versions"], default=0) for image in images)
