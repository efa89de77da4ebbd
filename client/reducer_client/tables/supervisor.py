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
    """Saves in a thread. The log tells each checkpoint, and the age of the last one after an error.

    Attributes:
        saved: the step of the last checkpoint; None before the first.
    """

    def __init__(
        self,
        directory: Path,
        policy: SavePolicy,
        job: str,
        tables: Callable[[], Sequence[Table]],
    ) -> None:
        self.saved: int | None = None
        self._begun_at = 0.0  # when the last checkpoint's save began
        self._directory = directory
        self._policy = policy
        self._job = job
        self._tables = tables
        self._lock = threading.Lock()  # one save at a time
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tables save", daemon=True)

    @property
    def age(self) -> float | None:
        """Seconds since the save of the last checkpoint began; None before the first checkpoint.

        A restart from the last checkpoint loses the training of this time.
        """
        return None if self.saved is None else time.monotonic() - self._begun_at

    def start(self) -> None:
        self._policy.saved(self._step(), time.monotonic())
        self._thread.start()

    def save(self) -> Path | None:
        """Save now. Returns the checkpoint; None if there is no table. Raises CheckpointError, or
        the errors of a pull.
        """
        with self._lock:
            begun_at = time.monotonic()
            images = [image_of(table) for table in self._tables()]
            if not images:
                return None
            step = step_of(images)
            path = save(self._directory, step, images, job=self._job, keep=self._policy.keep)
            now = time.monotonic()
            self._begun_at = begun_at
            self.saved = step
            self._policy.saved(step, now)
            logger.info("the tables of job %r: %s saved in %.1f s", self._job, path, now - begun_at)
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
                last = self._describe_last()
                logger.warning(
                    "the tables of job %r were not saved: %s; %s", self._job, error, last
                )
                self._policy.saved(self._step(), time.monotonic())

    def _describe_last(self) -> str:
        age = self.age
        if age is None:
            return "there is no checkpoint yet"
        return f"the last checkpoint, of step {self.saved}, is {age:.0f} s old"

    def _step(self) -> int:
        return max((table.version for table in self._tables()), default=0)


def step_of(images: Sequence[TableImage]) -> int:
    """The number of a checkpoint: the greatest version of its shards."""
    return max(max(image.state["versions"], default=0) for image in images)
