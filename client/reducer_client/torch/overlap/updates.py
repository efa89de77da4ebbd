"""The updates of the parameters: each takes place when its bucket's mean is here.

The training thread makes the updates: of the bucket for which it waits, and while that one's mean
is on its way, of other buckets whose means have arrived. So no update changes parameters or
gradients behind the back of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import SimpleQueue

from reducer_client.torch.hook.ddp import ReductionState
from reducer_client.torch.overlap.bucket import Bucket
from reducer_client.torch.overlap.partial_steps import Groups, PartialSteps


class Updates:
    """Updates in any order. ``steps`` takes the optimizer's steps."""

    def __init__(self, state: ReductionState, steps: PartialSteps) -> None:
        self._state = state
        self._steps = steps
        self._groups: Groups = []
        self._lock = threading.RLock()
        self._ended: SimpleQueue[Bucket | None] = SimpleQueue()  # None after a failure
        self._here: dict[int, Bucket] = {}  # ended exchanges, by index
        self._open: dict[int, Bucket] = {}  # updates of the last step that were not made
        self._failure: Exception | None = None

    def check(self) -> None:
        """Raise the error that has ended the training, if there is one."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: Exception) -> None:
        """End the training with an error. Any thread may call it."""
        self._failure = error
        self._ended.put(None)

    def arrive(self, bucket: Bucket) -> None:
        """The exchange of a bucket has ended. Any thread may call it."""
        self._ended.put(bucket)

    def release(self, buckets: Iterable[Bucket], groups: Groups) -> None:
        """Allow the updates of all buckets, with these hyperparameters."""
        with self._lock:
            self.check()
            self._groups = groups
            self._open = {bucket.index: bucket for bucket in buckets}

    def finish(self) -> None:
        """Wait until all updates are made. Raises ReducerErrors."""
        self.check()
        if self._open:
            self.wait(list(self._open.values())[::-1])

    def wait(self, buckets: Iterable[Bucket]) -> None:
        """Wait until the updates of these buckets are made. Raises ReducerErrors."""
        self.check()
        if not self._open:
            return
        with self._lock:
            for bucket in buckets:
                while bucket.index in self._open:
                    self._make(self._next(bucket))

    def _next(self, wanted: Bucket) -> Bucket:
        """The wanted bucket if its mean is here, else another one whose update can be made."""
        while True:
            while not self._ended.empty():
                self._take()
            if wanted.index in self._here:
                return self._here.pop(wanted.index)
            for index in sorted(self._here, reverse=True):
                if index in self._open:
                    return self._here.pop(index)
            self._take()

    def _take(self) -> None:
        bucket = self._ended.get()
        self.check()
        assert bucket is not None
        self._here[bucket.index] = bucket

    def _make(self, bucket: Bucket) -> None:
        self.check()
        try:
            self._end(bucket)
            self._steps.step(self._groups, bucket.parameters, bucket.means)
        except BaseException as error:  # an interrupt amid a step leaves half of it done
            is_plain = isinstance(error, Exception)
            self._failure = error if is_plain else _interrupted(error)  # type: ignore[assignment]
            raise
        del self._open[bucket.index]

    def _end(self, bucket: Bucket) -> None:
        try:
            bucket.end()
        except RuntimeError as error:  # torch has put the text of the error into another one
            raise self._state.last_error or error from None


def _interrupted(error: BaseException) -> RuntimeError:
    return RuntimeError(
        f"{type(error).__name__} interrupted an update of the parameters, which is half made: load "
        "a checkpoint"
    )
