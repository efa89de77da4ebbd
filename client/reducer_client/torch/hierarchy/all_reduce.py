"""One all-reduce through a hierarchy: its handle, its time, its parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from reducer.wire.codes import DType
from reducer_client.arrays import Array
from reducer_client.config import CHUNK_ALIGNMENT
from reducer_client.dtypes import Op, WireDtype
from reducer_client.errors import ReducerError, RoundTimeoutError
from reducer_client.torch.hierarchy.step_thread import StepThread
from reducer_client.work import Timeout

# Bytes of the pieces that a rank owns of a large array: the first and the last one have no network
# to hide behind, and each is a round of the reducers, which like them large.
SHARD_BYTES = 4 << 20

# Seconds in which the ranks of a hierarchy that ends tell each other why: three steps of network,
# each with a limit of its own.
PATIENCE = 10.0

# By local rank the part of a piece that each has, as bytes.
Piece = list[torch.Tensor]


class AllReduce:
    """Any thread may wait for it, any number of times."""

    def __init__(
        self,
        key: str,
        op: Op,
        wire: DType,
        result: Array,
        *,
        wire_dtype: WireDtype | None,
        dtype: str | None,
        limit: float,
        on_done: Callable[[Any], None] | None,
    ) -> None:
        self.key = key
        self.op: Op = op
        self.wire = wire
        self.result = result
        self.wire_dtype: WireDtype | None = wire_dtype
        self.dtype = dtype
        self.error: ReducerError | None = None
        self._deadline = time.monotonic() + limit
        self._on_done = on_done
        self._finished = threading.Event()

    def __repr__(self) -> str:
        return f"<AllReduce key={self.key!r} done={self.done}>"

    @property
    def done(self) -> bool:
        """Whether the call is finished, well or not; ``wait`` then returns or raises at once."""
        return self._finished.is_set()

    def wait(self, timeout: Timeout | None = None) -> Array:
        """Wait for the result and return it.

        Raises:
            ReducerError: the call failed, on all ranks of the host with the same text.
            RoundTimeoutError: not finished in ``timeout``, and goes on. None waits for the end,
                which comes within the time that ``all_reduce`` was given, and PATIENCE after it.
        """
        limit = max(0.0, self.left()) + PATIENCE if timeout is None else as_seconds(timeout)
        if not self._finished.wait(limit):
            raise RoundTimeoutError(
                f"key {self.key!r}: not finished after {limit:g} s",
                key=self.key,
                reason="timeout",
            )
        if self.error is not None:
            raise self.error
        return self.result

    def exception(self) -> ReducerError | None:
        """Why the call failed; None if it did not, or is not done yet."""
        return self.error if self.done else None

    def left(self) -> float:
        """The seconds that it still has."""
        return self._deadline - time.monotonic()

    def describe(self) -> bytes:
        """The text that must be equal on all ranks of a host."""
        text = f"{self.op} of {self.wire.name.lower()} x {self.result.size}"
        text += f" as {self.wire_dtype}" if self.wire_dtype else ""
        return f"{text}, key {self.key!r}".encode()

    def pieces(self, local_size: int) -> list[Piece]:
        """Views of the result; parts but the last are aligned, and may be empty at the end."""
        flat = torch.from_numpy(self.result.reshape(-1).view(np.uint8))
        pieces = []
        step = SHARD_BYTES * local_size
        for start in range(0, flat.numel(), step):
            piece = flat[start : start + step]
            shard = -(-piece.numel() // local_size)
            shard += -shard % CHUNK_ALIGNMENT
            pieces.append([piece[shard * r : shard * (r + 1)] for r in range(local_size)])
        return pieces

    def finish(self, callbacks: StepThread) -> None:
        """It is done; its callback runs on another thread than those that others wait for."""
        self._finished.set()
        if self._on_done is None:
            return
        done = partial(self._on_done, self)
        try:
            callbacks.put(done)
        except Exception:  # no memory
            done()


def as_seconds(timeout: Timeout) -> float:
    """Seconds of a timeout in seconds or a timedelta."""
    return timeout if isinstance(timeout, int | float) else timeout.total_seconds()
